#pragma once
// The config that a checkpoint was made with, with paths valid where the checkpoint is now.

#include "tera/checkpoint/checkpoint.h"
#include "tera/setup/load.h"

namespace tera {

// `families`: those that its model.arch may name.
LoadedConfig written_config(const Checkpoint& checkpoint, Families families = built_in_families());  // unchanged

// The config with the tokenizer files in the checkpoint, wherever they were when it was made.
LoadedConfig stored_config(const Checkpoint& checkpoint, Families families = built_in_families());

// The stored run of a checkpoint, or of the newest one in a folder of checkpoints.
StoredRun find_stored_run(const std::string& folder, Families families = built_in_families());

}  // namespace tera
