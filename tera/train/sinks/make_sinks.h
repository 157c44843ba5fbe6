#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include "tera/config/setup.h"
#include "tera/train/sinks/metrics.h"

namespace tera {

class Log;

// Where a run's numbers go, by its config: a line for each kind. `folder` is run.dir.
std::vector<std::unique_ptr<MetricsSink>> make_sinks(const Setup& setup, const std::filesystem::path& folder,
                                                     AppendFile::Start start, Log& log);

}  // namespace tera
