#pragma once
// The config that a checkpoint was made with, ready to be used where the checkpoint is now.

#include "tera/checkpoint/checkpoint.h"
#include "tera/config/load.h"

namespace tera {

LoadedConfig written_config(const Checkpoint& checkpoint);  // as it was

// The tokenizer's files are those in the checkpoint, wherever they were when it was made.
LoadedConfig stored_config(const Checkpoint& checkpoint);

// Of a checkpoint, or of the newest in a folder of them.
StoredRun find_stored_run(const std::string& folder);

}  // namespace tera
