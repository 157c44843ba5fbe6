#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// norm = sqrt(sum of sums, in order), and the factor that brings it down to max_norm; NaN when norm is not finite.
struct Clip {
  const double* sums;  // [n]
  float *norm, *factor;
  std::int64_t n;
  float max_norm;  // 0: no limit
};
cudaError_t launch_clip(const Clip& args, cudaStream_t stream);

// What both optimizers share. A grad_factor that is not finite leaves everything as it is, but for clear_grad.
struct Update {
  float *weight, *grad;  // [n]
  void* copy;            // [n] of copy_dtype; may be null
  Scalar copy_dtype;
  std::int64_t n;
  const float *lr, *grad_factor;  // on the device
  float weight_decay;
  bool clear_grad;
};

struct Adam {
  Update update;
  float *m, *v;                            // [n]
  const float *correction1, *correction2;  // on the device
  float beta1, beta2, one_minus_beta1, one_minus_beta2, eps;
};
cudaError_t launch_adam(const Adam& args, cudaStream_t stream);

struct Sgd {
  Update update;
  float* momentum_buffer;  // [n]; may be null
  float momentum;
};
cudaError_t launch_sgd(const Sgd& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
