#pragma once
// Whether a resumed run has the tokenizer that its checkpoint was trained with.

#include <string>

#include "tera/checkpoint/checkpoint.h"
#include "tera/config/run_config.h"

namespace tera {

// Names, as part of a message, a file of the run's tokenizer that differs from the checkpoint's, and the latter; empty
// where all files that both have are equal, and for a checkpoint without tokenizer files or without checksums.
std::string other_tokenizer(const Checkpoint& checkpoint, const RunConfig& config);

}  // namespace tera
