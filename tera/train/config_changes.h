#pragma once
// The differences between the config of a resumed run and the one stored with its checkpoint.

#include <string>

#include "tera/config/run_config.h"

namespace tera {

// "optimizer.lr 0.001 -> 0.01, dataset.split ...": values of the model, the data, the batches and the optimizer that
// differ from those of a stored config; not those that only set paths, speed or duration. Empty: none.
std::string changes_since(const RunConfig& stored, const RunConfig& config);

// Why the tensors of a checkpoint do not match: "it is of a deepseek_v3, and the config describes a mixtral", then keys
// of the model with both values, a few in all, those that decide shapes first. Empty where no key explains it, because
// the vocabulary may be a tokenizer's, and where the models differ only in their number of MTP layers, which has a
// remedy of its own.
std::string model_difference(const std::string& stored_yaml, const RunConfig& config);

}  // namespace tera
