#include "tera/nn/dropout.h"

namespace tera {

void forward_with_dropout(Run& run, const Linear& linear, const Tensor& x, const Tensor& y, const Tensor& residual,
                          const Dropout& dropout) {
  if (!dropout.active(run)) {
    linear.forward(run, x, y, residual);
    return;
  }
  linear.forward(run, x, y);
  run.ops.dropout(
      {.x = y, .y = y, .residual = residual, .rows = run.mb.rows, .rate = dropout.rate, .key = dropout.key});
}

Tensor gradient_before_dropout(Run& run, const Tensor& dy, const Dropout& dropout, std::string_view tag) {
  if (!dropout.active(run)) return dy;
  const Tensor dx = run.stash.take(Life::b_to_w, dy.shape, dy.dtype, tag);
  run.ops.dropout({.x = dy, .y = dx, .residual = {}, .rows = run.mb.rows, .rate = dropout.rate, .key = dropout.key});
  return dx;
}

}  // namespace tera
