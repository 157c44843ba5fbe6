#pragma once
// A complete training run through the library, and what it logged.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tera/setup/resolve.h"
#include "tera/train/trainer.h"
#include "tests/support/overrides.h"

namespace tera::test {

Setup load_setup(const std::string& config, const Overrides& overrides, Purpose purpose = Purpose::train);

struct RunRecord {
  std::vector<double> loss, grad_norm, lr, eval_loss;
  std::vector<double> loss_scale;  // empty unless fp16
  std::vector<double> mtp_loss;    // empty without MTP layers
  std::vector<bool> skipped;
  std::vector<float> weights;  // all parameters in name order, as they were at the end
  bool operator==(const RunRecord&) const = default;
};

// `config` is a file's name below configs/tests, without its ending.
// When a step is reported: at once or when the next one is in flight; or as the backend prefers.
enum class Reporting : std::uint8_t { at_once, late };
RunRecord train_once(const std::string& config, const Overrides& overrides = {}, const BackendOptions& options = {},
                     std::optional<Reporting> when = {});

std::vector<float> read_weights(ParamStore& params, Ops& ops);

}  // namespace tera::test
