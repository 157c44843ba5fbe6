#pragma once
// What follows from the config of a run that goes on: also from how far it is, and from what it was until now.

#include "tera/config/setup.h"
#include "tera/train/resume.h"

namespace tera {

// A global batch that is left open is that of the checkpoint, where the ranks can share it: on others than before, a
// run that is started with the same words trains the same. What is otherwise than before is told in the warnings of
// `start`. A run that starts anew is as it was.
Setup continue_run(const Setup& setup, StartPoint& start);

// As it is stored with checkpoints: with the global batch that followed, which on other ranks would be another one.
std::string config_to_store(const Setup& setup);

}  // namespace tera
