#pragma once
// Whether a run that goes on has the tokenizer that its checkpoint was trained with.

#include <string>

#include "tera/checkpoint/checkpoint.h"
#include "tera/config/run_config.h"

namespace tera {

// A file of the run's tokenizer that is not what the checkpoint carries, and that one, as part of a message; empty
// where all that both have are equal. A checkpoint without tokenizer files, or without checksums, says nothing.
std::string other_tokenizer(const Checkpoint& checkpoint, const RunConfig& config);

}  // namespace tera
