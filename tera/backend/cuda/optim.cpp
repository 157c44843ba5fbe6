#include "tera/backend/cuda/kernels/optim.cuh"
#include "tera/backend/cuda/cuda_error.h"
#include "tera/backend/cuda/cuda_ops.h"

namespace tera::cuda {
namespace {

const float* address(const Tensor& scalars, StepScalar which) { return scalars.as<float>() + static_cast<int>(which); }

// Of AdamArgs or SgdArgs.
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

void CudaOps::do_clip(const ClipArgs& args) {
  check(kernels::launch_clip({.sums = args.sums.as<double>(),
                              .norm = args.norm.as<float>(),
                              .factor = args.factor.as<float>(),
                              .n = args.sums.dim(0),
                              .max_norm = args.max_norm},
                             stream_),
        "clip");
}

void CudaOps::do_adam(const AdamArgs& args) {
  check(kernels::launch_adam({.update = update_of(args),
                              .m = args.m.as<float>(),
                              .v = args.v.as<float>(),
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

void CudaOps::do_sgd(const SgdArgs& args) {
  check(kernels::launch_sgd({.update = update_of(args),
                             .momentum_buffer = args.momentum_buffer ? args.momentum_buffer.as<float>() : nullptr,
                             .momentum = args.momentum},
                            stream_),
        "sgd");
}

}  // namespace tera::cuda
