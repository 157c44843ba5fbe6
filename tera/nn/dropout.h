#pragma once
// Dropout between a projection and the residual: y = residual + dropout(linear(x)).

#include "tera/nn/linear.h"

namespace tera {

struct Dropout {
  float rate = 0;
  RngKey key;
  const TensorParallel& tp;  // whose rows they are
  bool active(const Run& run) const { return rate > 0 && run.mb.training; }
};

void forward_with_dropout(Run& run, const Linear& linear, const Tensor& x, const Tensor& y, const Tensor& residual,
                          const Dropout& dropout);

// The gradient of the projection's output: of all rows for B, and what W keeps of it. Where rows are cut and W comes
// later, that is this rank's own rows, gathered again there. Without dropout and cut rows both are dy itself.
struct ProjectionGradient {
  Tensor all, kept;
};
ProjectionGradient gradient_before_dropout(Run& run, const Linear& linear, const Tensor& dy, const Dropout& dropout,
                                           std::string_view tag);

}  // namespace tera
