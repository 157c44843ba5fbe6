#pragma once
// Dropout between a projection and the residual: y = residual + dropout(linear(x)).

#include "tera/base/rng.h"
#include "tera/nn/linear.h"

namespace tera {

struct Dropout {
  float rate = 0;
  RngKey key;
  const TensorParallel& tp;  // decides which rows this rank has
  bool active(const Run& run) const { return rate > 0 && run.mb.training; }
};

void forward_with_dropout(Run& run, const Linear& linear, const Tensor& x, const Tensor& y, const Tensor& residual,
                          const Dropout& dropout);

// The gradient of the projection's output: of all rows for B, and what W keeps of it. With sequence parallelism and a
// later W only this rank's rows are kept, and W gathers them again. Without dropout and sequence parallelism both are
// dy.
struct ProjectionGradient {
  Tensor all, kept;
};
ProjectionGradient gradient_before_dropout(Run& run, const Linear& linear, const Tensor& dy, const Dropout& dropout,
                                           std::string_view tag);

}  // namespace tera
