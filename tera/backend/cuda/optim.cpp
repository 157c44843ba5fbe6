#include "tera/backend/cuda/kernels/optim.cuh"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/ops/optim.h"

namespace tera::cuda {
namespace {

float* address(const Tensor& scalars, StepScalar which) { return scalars.as<float>() + static_cast<int>(which); }
double* address(const Tensor& state, ScaleState which) { return state.as<double>() + static_cast<int>(which); }

// The arguments that AdamArgs and SgdArgs have in common.
template <class Args>
kernels::Update update_of(const Args& args) {
  return {.weight = args.weight.template as<float>(),
          .grad = args.grad.template as<float>(),
          .copy = args.copy.data,
          .copy_dtype = args.copy ? scalar_of(args.copy.dtype) : kernels::Scalar::f32,
          .n = count(args.weight.shape),
          .lr = address(args.scalars, StepScalar::lr),
          .grad_factor = address(args.scalars, StepScalar::grad_factor),
          .weight_decay = args.weight_decay,
          .clear_grad = args.clear_grad};
}

}  // namespace

template <>
void CudaOps::compute(const ClipArgs& args) {
  check(kernels::launch_clip({.sums = args.sums.as<double>(),
                              .norm = args.norm.as<float>(),
                              .factor = args.factor.as<float>(),
                              .scale = args.state ? address(args.state, ScaleState::scale) : nullptr,
                              .n = args.sums.dim(0),
                              .max_norm = args.max_norm},
                             stream_),
        "clip");
}

template <>
void CudaOps::compute(const ScaleLossArgs& args) {
  check(kernels::launch_scale_loss({.x = args.x.as<float>(),
                                    .out = args.out.as<float>(),
                                    .scale = address(args.state, ScaleState::scale),
                                    .n = args.x.dim(0)},
                                   stream_),
        "scale_loss");
}

template <>
void CudaOps::compute(const CountStepArgs& args) {
  check(kernels::launch_count_step({.scale = address(args.state, ScaleState::scale),
                                    .good_steps = address(args.state, ScaleState::good_steps),
                                    .hysteresis = address(args.state, ScaleState::hysteresis),
                                    .updates = address(args.state, ScaleState::updates),
                                    .skipped = address(args.state, ScaleState::skipped),
                                    .grad_factor = address(args.scalars, StepScalar::grad_factor),
                                    .rates = args.rates.as<float>(),
                                    .lr = address(args.scalars, StepScalar::lr),
                                    .correction1 = address(args.scalars, StepScalar::correction1),
                                    .correction2 = address(args.scalars, StepScalar::correction2),
                                    .beta1 = args.beta1,
                                    .beta2 = args.beta2,
                                    .min_scale = args.rule.min_scale,
                                    .max_scale = max_loss_scale,
                                    .window = static_cast<double>(args.rule.window),
                                    .full_hysteresis = static_cast<double>(args.rule.hysteresis),
                                    .dynamic = args.rule.dynamic},
                                   stream_),
        "count_step");
}

template <>
void CudaOps::compute(const AdamArgs& args) {
  check(kernels::launch_adam({.update = update_of(args),
                              .m = args.m.data,
                              .v = args.v.data,
                              .m_dtype = scalar_of(args.m.dtype),
                              .v_dtype = scalar_of(args.v.dtype),
                              .correction1 = address(args.scalars, StepScalar::correction1),
                              .correction2 = address(args.scalars, StepScalar::correction2),
                              .beta1 = static_cast<float>(args.beta1),
                              .beta2 = static_cast<float>(args.beta2),
                              .one_minus_beta1 = static_cast<float>(1 - args.beta1),
                              .one_minus_beta2 = static_cast<float>(1 - args.beta2),
                              .eps = args.eps},
                             stream_),
        "adam");
}

template <>
void CudaOps::compute(const SgdArgs& args) {
  check(kernels::launch_sgd({.update = update_of(args),
                             .momentum_buffer = args.momentum_buffer ? args.momentum_buffer.as<float>() : nullptr,
                             .momentum = args.momentum},
                            stream_),
        "sgd");
}

}  // namespace tera::cuda
