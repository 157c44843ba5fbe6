#pragma once
// What a run that goes on does otherwise than the one before it.

#include <string>

#include "tera/config/run_config.h"

namespace tera {

// "optimizer.lr 0.001 -> 0.01, dataset.split ...": values of the model, the data, the batches and the optimizer that
// differ from those of a stored config; not those that only say where, how fast or how long. Empty: none.
std::string changes_since(const std::string& stored_yaml, const RunConfig& config);

}  // namespace tera
