#pragma once
// The rules of the dataset section.

#include <string>

#include "tera/config/setup.h"
#include "tera/setup/report.h"
#include "tera/setup/resolve.h"

namespace tera {

// "969,30,1" to fractions; those left out at the end are zero.
SplitShape resolve_split(const std::string& text, Report& report);

// The paths of dataset.kind=indexed and sft, in any of their forms.
IndexedShape resolve_indexed(const RunConfig& config, Purpose purpose, Report& report);

void check_data_path(const DatasetConfig& dataset, Purpose purpose, Report& report);

}  // namespace tera
