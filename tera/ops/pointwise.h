#pragma once
#include "tera/base/kinds.h"
#include "tera/base/rng.h"
#include "tera/tensor/tensor.h"

namespace tera {

// y = act(x); gated kinds: x [T,2F] = [gate | up], y [T,F] = act(gate) * up. Dense.
struct ActivationArgs {
  Activation kind = Activation::swiglu;
  Tensor x, y;
  // The router's weights, both or neither: row r of y is multiplied by weights[sources[r]]. Negative sources are
  // padding_row and unused_row (expert_rows.h).
  Tensor weights;  // f32 [T,K]
  Tensor sources;  // i32 [rows of x]
  void check() const;
};

// dx of the same shape as x; may be x itself.
struct ActivationBackArgs {
  Activation kind = Activation::swiglu;
  Tensor dy, x, dx;
  Tensor weights, sources;  // as in ActivationArgs
  // f32 [T,K], with weights: dweights[sources[r]] = sum of dy[r] * y[r] before the weight. Entries without a row are
  // not written.
  Tensor dweights;
  void check() const;
};

// y = residual + mask * x / (1 - rate). The mask is a pure function of (key, row id, column), so that backward (dropout
// of dy without residual) and any split of rows draw the same one. x, y, residual [T,H] dense; y may be x.
struct DropoutArgs {
  Tensor x, y;
  Tensor residual;  // optional
  Tensor rows;      // i64 [T]: global row ids
  float rate = 0;
  RngKey key;
  void check() const;
};

}  // namespace tera
