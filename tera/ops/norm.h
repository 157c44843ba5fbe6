#pragma once
#include "tera/base/kinds.h"
#include "tera/tensor/tensor.h"

namespace tera {

// y = (x - mean) * rstd * weight + bias over the last dim; rms_norm has no mean and no bias, and rounds the normalised
// value to the dtype of x before the weight is applied, as Hugging Face does.
// x, y [T,H], or [T,N,D] to norm each head; rows may be strided. mean, rstd f32 [T] or [T,N].
struct NormArgs {
  NormKind kind = NormKind::rms_norm;
  Tensor x, weight, y;
  Tensor bias, mean;  // layer_norm only
  Tensor rstd;
  float eps = 1e-5f;
  void check() const;
};

// dx = gradient through the norm (+ residual); dweight and dbias (f32) accumulate when given.
struct NormBackArgs {
  NormKind kind = NormKind::rms_norm;
  Tensor dy, x, weight, rstd;
  Tensor mean;            // layer_norm only
  Tensor residual;        // shaped like dx, optional; may be dx itself
  Tensor dx;              // may be dy itself
  Tensor dweight, dbias;  // f32 [H], optional
  void check() const;
};

}  // namespace tera
