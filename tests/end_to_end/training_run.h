#pragma once
// A whole training run through the library, and what it logged.

#include <string>
#include <vector>

#include "tera/config/resolve.h"
#include "tera/train/trainer.h"

namespace tera::test {

Setup load_setup(const std::string& config, const std::vector<std::string>& overrides,
                 Purpose purpose = Purpose::train);

struct RunRecord {
  std::vector<double> loss, grad_norm, lr, eval_loss;
  std::vector<float> weights;  // all parameters in name order, as they were at the end
  bool operator==(const RunRecord&) const = default;
};

// `config` is a file's name below configs/tests, without its ending.
RunRecord train_once(const std::string& config, const std::vector<std::string>& overrides = {},
                     const BackendOptions& options = {});

std::vector<float> read_weights(ParamStore& params, Ops& ops);

}  // namespace tera::test
