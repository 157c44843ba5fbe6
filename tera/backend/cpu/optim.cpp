#include "tera/backend/cpu/kernels/optim.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/ops/copy.h"
#include "tera/ops/optim.h"

namespace tera::cpu {
namespace {

const OptimKernels& kernels(Isa isa) {
  return pick(isa, []<Isa i>() -> const OptimKernels& { return optim_kernels<i>(); });
}

float scalar(const Tensor& scalars, StepScalar which) { return scalars.as<float>()[static_cast<int>(which)]; }

double& state(const Tensor& scaling, ScaleState which) { return scaling.as<double>()[static_cast<int>(which)]; }

bool is_skipped(const Tensor& scalars) { return !std::isfinite(scalar(scalars, StepScalar::grad_factor)); }

}  // namespace

template <>
void CpuOps::compute(const ClipArgs& args) {
  double total = 0;
  for (std::int64_t p = 0; p < args.sums.dim(0); ++p) total += args.sums.as<double>()[p];
  const double scale = args.state ? state(args.state, ScaleState::scale) : 1;
  const double norm = std::sqrt(total) / scale;
  const double ratio = args.max_norm / (norm + 1e-6);
  *args.norm.as<float>() = static_cast<float>(norm);
  if (!std::isfinite(*args.norm.as<float>()))  // a step with a NaN or infinite norm must not look like an unclipped one
    *args.factor.as<float>() = std::numeric_limits<float>::quiet_NaN();
  else
    *args.factor.as<float>() = static_cast<float>((args.max_norm == 0 || ratio >= 1 ? 1 : ratio) / scale);
}

template <>
void CpuOps::compute(const ScaleLossArgs& args) {
  const double scale = state(args.state, ScaleState::scale);
  for (std::int64_t i = 0; i < args.x.dim(0); ++i)
    args.out.as<float>()[i] = static_cast<float>(static_cast<double>(args.x.as<float>()[i]) * scale);
}

template <>
void CpuOps::compute(const CountStepArgs& args) {
  float* const scalars = args.scalars.as<float>();
  double &scale = state(args.state, ScaleState::scale), &good = state(args.state, ScaleState::good_steps),
         &hysteresis = state(args.state, ScaleState::hysteresis), &updates = state(args.state, ScaleState::updates),
         &skipped = state(args.state, ScaleState::skipped);
  scalars[static_cast<int>(StepScalar::lr)] = args.rates.as<float>()[skipped != 0 ? 1 : 0];
  scalars[static_cast<int>(StepScalar::correction1)] = static_cast<float>(1 - std::pow(args.beta1, updates + 1));
  scalars[static_cast<int>(StepScalar::correction2)] = static_cast<float>(1 - std::pow(args.beta2, updates + 1));
  skipped = is_skipped(args.scalars) ? 1 : 0;
  if (skipped == 0) updates += 1;
  if (!args.rule.dynamic) return;
  if (skipped != 0) {
    good = 0;
    hysteresis = std::max(hysteresis - 1, 0.0);
    if (hysteresis == 0) scale = std::max(scale / 2, args.rule.min_scale);
  } else if (good += 1; good >= static_cast<double>(args.rule.window)) {
    good = 0;
    hysteresis = static_cast<double>(args.rule.hysteresis);
    scale = std::min(scale * 2, max_loss_scale);
  }
}

template <>
void CpuOps::compute(const AdamArgs& args) {
  if (is_skipped(args.scalars)) {
    if (args.clear_grad) (*this)(FillArgs{.out = args.grad});
    return;
  }
  const AdamStep step{.weight = args.weight.as<float>(),
                      .grad = args.grad.as<float>(),
                      .m = args.m.data,
                      .v = args.v.data,
                      .copy = args.copy.data,
                      .lr = scalar(args.scalars, StepScalar::lr),
                      .correction1 = scalar(args.scalars, StepScalar::correction1),
                      .correction2 = scalar(args.scalars, StepScalar::correction2),
                      .grad_factor = scalar(args.scalars, StepScalar::grad_factor),
                      .beta1 = static_cast<float>(args.beta1),
                      .beta2 = static_cast<float>(args.beta2),
                      .one_minus_beta1 = static_cast<float>(1 - args.beta1),
                      .one_minus_beta2 = static_cast<float>(1 - args.beta2),
                      .eps = args.eps,
                      .weight_decay = args.weight_decay,
                      .clear_grad = args.clear_grad};
  const auto kernel = kernels(isa_).adam[static_cast<int>(args.m.dtype)][static_cast<int>(args.v.dtype)]
                                        [args.copy ? static_cast<int>(args.copy.dtype) : 0];
  run_blocks(pool_, element_blocks(count(args.weight.shape)),
             [&](std::int64_t begin, std::int64_t end) { kernel(step, begin, end); });
}

template <>
void CpuOps::compute(const SgdArgs& args) {
  if (is_skipped(args.scalars)) {
    if (args.clear_grad) (*this)(FillArgs{.out = args.grad});
    return;
  }
  const SgdStep step{.weight = args.weight.as<float>(),
                     .grad = args.grad.as<float>(),
                     .momentum_buffer = args.momentum_buffer ? args.momentum_buffer.as<float>() : nullptr,
                     .copy = args.copy.data,
                     .lr = scalar(args.scalars, StepScalar::lr),
                     .grad_factor = scalar(args.scalars, StepScalar::grad_factor),
                     .momentum = args.momentum,
                     .weight_decay = args.weight_decay,
                     .clear_grad = args.clear_grad};
  const auto kernel = kernels(isa_).sgd[args.copy ? static_cast<int>(args.copy.dtype) : 0];
  run_blocks(pool_, element_blocks(count(args.weight.shape)),
             [&](std::int64_t begin, std::int64_t end) { kernel(step, begin, end); });
}

}  // namespace tera::cpu
