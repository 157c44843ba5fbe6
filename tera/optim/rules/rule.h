#pragma once
// An update rule: how an optimizer moves weights by their gradients, elementwise over flat ranges of shards. Clipping,
// loss scale, vetoes, the learning rate and where shards lie are the Optimizer's (optimizer.h), the same for all rules.

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tera/config/sections/optimizer.h"
#include "tera/tensor/tensor.h"

namespace tera {

class Ops;

// What a rule keeps of every trained element, as one tensor over all of this rank's shards.
struct RuleState {
  std::string_view name;  // as in PyTorch: a checkpoint has it as optimizer.NAME.PART
  DType dtype = DType::f32;
  std::string_view tag;  // names its memory in plans
};

// Consecutive trained elements of this rank, all with weight decay or all without.
struct FlatRange {
  Tensor weight, grad;              // f32 [n]: master weights and gradients
  Tensor copy;                      // optional [n]: the weights in the dtype that compute uses
  std::span<const Tensor> state{};  // [n] each, in the order of UpdateRule::state()
  Tensor scalars;                   // f32 [StepScalar::count]
  float weight_decay = 0;
  bool clear_grad = false;
};

class UpdateRule {
 public:
  static constexpr std::size_t max_states = 4;
  virtual ~UpdateRule() = default;

  virtual std::vector<RuleState> state() const = 0;  // at most max_states
  // Skips the step where grad_factor is not finite, on the device (tera/ops/optim.h).
  virtual void update(Ops& ops, const FlatRange& range) const = 0;
  // Decay rates of moments that are corrected for their start at zero (StepScalar::correction1 and 2).
  struct Decays {
    double first = 0, second = 0;
  };
  virtual Decays decays() const { return {}; }
};

// The rule that optimizer.optimizer names.
std::unique_ptr<UpdateRule> make_update_rule(const OptimizerConfig& config);
std::unique_ptr<UpdateRule> make_adam(const OptimizerConfig& config);
std::unique_ptr<UpdateRule> make_sgd(const OptimizerConfig& config);

}  // namespace tera
