#pragma once
// The rules of the dataset section.

#include <string>

#include "tera/config/report.h"
#include "tera/config/resolve.h"
#include "tera/config/setup.h"

namespace tera {

// "969,30,1" to parts of the whole; parts left out at the end are zero.
SplitShape resolve_split(const std::string& text, Report& report);

// The paths of dataset.kind=indexed, in whichever of their forms they are given.
IndexedShape resolve_indexed(const RunConfig& config, Purpose purpose, Report& report);

void check_data_path(const DatasetConfig& dataset, Purpose purpose, Report& report);

}  // namespace tera
