#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// norm = sqrt(sum of sums, in order), and the factor that brings it down to max_norm; NaN when norm is not finite.
struct Clip {
  const double* sums;  // [n]
  float *norm, *factor;
  const double* scale;  // loss scale, hence a factor in the sums' roots; may be null
  std::int64_t n;
  float max_norm;  // 0: no limit
};
cudaError_t launch_clip(const Clip& args, cudaStream_t stream);

// out = x * scale.
struct ScaleLoss {
  const float* x;  // [n]
  float* out;      // [n]
  const double* scale;
  std::int64_t n;
};
cudaError_t launch_scale_loss(const ScaleLoss& args, cudaStream_t stream);

// An update or an overflow is counted, and the scalars of the update are written: see CountStepArgs.
struct CountStep {
  double *scale, *good_steps, *hysteresis, *updates, *skipped;
  const float *grad_factor, *rates;  // [1], [2]
  float *lr, *correction1, *correction2;
  double beta1, beta2;
  double min_scale, max_scale, window, full_hysteresis;
  bool dynamic;
};
cudaError_t launch_count_step(const CountStep& args, cudaStream_t stream);

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
  void *m, *v;  // [n] of their dtypes: f32 or bf16
  Scalar m_dtype, v_dtype;
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
