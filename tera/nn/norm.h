#pragma once
#include "tera/base/kinds.h"
#include "tera/nn/params.h"
#include "tera/nn/run.h"
#include "tera/nn/tensor_parallel.h"

namespace tera {

struct NormSpec {
  std::string name;  // files hold name.weight, and name.bias for LayerNorm
  std::int64_t size = 0;
  NormKind kind = NormKind::rms_norm;
  float eps = 1e-5f;
  bool per_head = false;  // over each head: tp ranks norm their own heads; else, with sequence parallelism, own rows
};

// Statistics of the rows, kept for backward.
struct NormStats {
  Tensor mean, rstd;  // f32 [T] or [T,N]; mean: LayerNorm only
};

class Norm {
 public:
  Norm(ParamStore& params, const NormSpec& spec, const TensorParallel& tp = {});

  NormStats take_stats(Run& run, const Tensor& x, std::string_view tag) const;  // in the stash, until B
  void forward(Run& run, const Tensor& x, const Tensor& y, const NormStats& stats) const;
  // dx = gradient of x (+ residual); the gradients of weight and bias accumulate.
  void backward(Run& run, const Tensor& dy, const Tensor& x, const NormStats& stats, const Tensor& residual,
                const Tensor& dx) const;

 private:
  NormKind kind_;
  float eps_;
  Param* weight_;
  Param* bias_ = nullptr;
};

}  // namespace tera
