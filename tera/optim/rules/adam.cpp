// AdamW, with moments in fp32 or bf16.

#include "tera/ops/ops.h"
#include "tera/ops/optim.h"
#include "tera/optim/rules/rule.h"

namespace tera {
namespace {

DType dtype_of(MomentType type) { return type == MomentType::bf16 ? DType::bf16 : DType::f32; }

class Adam final : public UpdateRule {
 public:
  explicit Adam(const OptimizerConfig& config) : config_(config) {}

  std::vector<RuleState> state() const override {
    return {{.name = "exp_avg", .dtype = dtype_of(config_.exp_avg_dtype), .tag = "adam first moment"},
            {.name = "exp_avg_sq", .dtype = dtype_of(config_.exp_avg_sq_dtype), .tag = "adam second moment"}};
  }
  Decays decays() const override { return {config_.adam_beta1, config_.adam_beta2}; }

  void update(Ops& ops, const FlatRange& range) const override {
    ops(AdamArgs{.weight = range.weight,
                 .grad = range.grad,
                 .m = range.state[0],
                 .v = range.state[1],
                 .copy = range.copy,
                 .scalars = range.scalars,
                 .beta1 = config_.adam_beta1,
                 .beta2 = config_.adam_beta2,
                 .eps = static_cast<float>(config_.adam_eps),
                 .weight_decay = range.weight_decay,
                 .clear_grad = range.clear_grad});
  }

 private:
  OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adam(const OptimizerConfig& config) { return std::make_unique<Adam>(config); }

}  // namespace tera
