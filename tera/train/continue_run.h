#pragma once
// The setup of a resumed run, which also depends on its progress and on its setup until now.

#include "tera/config/setup.h"
#include "tera/train/resume.h"

namespace tera {

// A global batch size that is left open is that of the checkpoint, where the ranks can divide it: on another number of
// ranks the same command line trains the same. Differences from before go into the warnings of `start`. A run that is
// not resumed keeps its setup.
Setup continue_run(const Setup& setup, StartPoint& start);

// The config's YAML for checkpoints: with the derived global batch size, which would differ on another number of ranks.
std::string config_to_store(const Setup& setup);

}  // namespace tera
