#pragma once
// What follows from the config of a run that goes on: also from how far it is.

#include "tera/config/setup.h"
#include "tera/train/resume.h"

namespace tera {

// Of a run that starts anew: as it was.
Setup continue_run(const Setup& setup, StartPoint& start);

}  // namespace tera
