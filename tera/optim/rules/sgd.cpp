// Gradient descent, with momentum or without.

#include "tera/ops/ops.h"
#include "tera/ops/optim.h"
#include "tera/optim/rules/rule.h"

namespace tera {
namespace {

class Sgd final : public UpdateRule {
 public:
  explicit Sgd(const OptimizerConfig& config) : momentum_(static_cast<float>(config.sgd_momentum)) {}

  std::vector<RuleState> state() const override {
    if (momentum_ == 0) return {};
    return {{.name = "momentum_buffer", .dtype = DType::f32, .tag = "sgd momentum"}};
  }

  void update(Ops& ops, const FlatRange& range) const override {
    ops(SgdArgs{.weight = range.weight,
                .grad = range.grad,
                .momentum_buffer = range.state.empty() ? Tensor{} : range.state[0],
                .copy = range.copy,
                .scalars = range.scalars,
                .momentum = momentum_,
                .weight_decay = range.weight_decay,
                .clear_grad = range.clear_grad});
  }

 private:
  float momentum_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_sgd(const OptimizerConfig& config) { return std::make_unique<Sgd>(config); }

}  // namespace tera
