#pragma once
// The config that a checkpoint was made with, with paths valid where the checkpoint is now.

#include "tera/checkpoint/checkpoint.h"
#include "tera/setup/load.h"

namespace tera {

LoadedConfig written_config(const Checkpoint& checkpoint);  // unchanged

// The config with the tokenizer files in the checkpoint, wherever they were when it was made.
LoadedConfig stored_config(const Checkpoint& checkpoint);

// The stored run of a checkpoint, or of the newest one in a folder of checkpoints.
StoredRun find_stored_run(const std::string& folder);

}  // namespace tera
