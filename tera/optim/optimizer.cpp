#include "tera/optim/optimizer.h"

#include <array>
#include <cmath>

#include "tera/ops/ops.h"

namespace tera {

Optimizer::Optimizer(const OptimizerConfig& config, ParamStore& params) : config_(config), params_(params) {}

void Optimizer::bind(Arena& state) {
  const std::int64_t trained = params_.trained_elements();
  std::int64_t parameters = 0;
  for (const Param* param : params_.by_name()) parameters += param->grad ? 1 : 0;
  if (config_.optimizer == OptimizerKind::adam) {
    m_ = state.take(shape(trained), DType::f32, "adam first moment");
    v_ = state.take(shape(trained), DType::f32, "adam second moment");
  } else if (config_.sgd_momentum > 0) {
    m_ = state.take(shape(trained), DType::f32, "sgd momentum");
  }
  scalars_ = state.take(shape(static_cast<int>(StepScalar::count)), DType::f32, "step scalars");
  sums_ = state.take(shape(parameters), DType::f64, "sums of squares");
  norm_ = state.take(shape(1), DType::f32, "gradient norm");
}

void Optimizer::step(Ops& ops, double lr, std::int64_t number) {
  RangeScope range(ops, "optimizer");
  write_scalars(ops, lr, number);
  clip(ops);
  for (const auto& group : params_.groups()) update(ops, group);
}

void Optimizer::write_scalars(Ops& ops, double lr, std::int64_t number) {
  const auto correction = [&](double beta) {
    return static_cast<float>(1 - std::pow(beta, static_cast<double>(number)));
  };
  const std::array<float, 3> values{static_cast<float>(lr), correction(config_.adam_beta1),
                                    correction(config_.adam_beta2)};
  ops.from_host(std::as_bytes(std::span(values)), scalars_.rows(0, values.size()));
}

// Per-parameter sums, added in name order: the norm does not depend on how parameters are laid out or cut.
void Optimizer::clip(Ops& ops) {
  std::int64_t i = 0;
  for (const Param* param : params_.by_name()) {
    if (!param->grad) continue;
    ops.sum_squares({.x = param->grad, .out = sums_.rows(i, i + 1)});
    ++i;
  }
  const auto factor = static_cast<std::int64_t>(StepScalar::grad_factor);
  ops.clip({.sums = sums_,
            .norm = norm_,
            .factor = scalars_.rows(factor, factor + 1),
            .max_norm = static_cast<float>(config_.clip_grad)});
}

void Optimizer::update(Ops& ops, const ParamStore::Group& group) {
  const float decay = group.decay ? static_cast<float>(config_.weight_decay) : 0;
  const Tensor m = m_ ? m_.rows(group.begin, group.end) : Tensor{};
  if (config_.optimizer == OptimizerKind::adam) {
    ops.adam({.weight = group.master,
              .grad = group.grad,
              .m = m,
              .v = v_.rows(group.begin, group.end),
              .copy = group.copy,
              .scalars = scalars_,
              .beta1 = config_.adam_beta1,
              .beta2 = config_.adam_beta2,
              .eps = static_cast<float>(config_.adam_eps),
              .weight_decay = decay,
              .clear_grad = true});
  } else {
    ops.sgd({.weight = group.master,
             .grad = group.grad,
             .momentum_buffer = m,
             .copy = group.copy,
             .scalars = scalars_,
             .momentum = static_cast<float>(config_.sgd_momentum),
             .weight_decay = decay,
             .clear_grad = true});
  }
}

}  // namespace tera
