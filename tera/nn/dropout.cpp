#include "tera/nn/dropout.h"

namespace tera {

void forward_with_dropout(Run& run, const Linear& linear, const Tensor& x, const Tensor& y, const Tensor& residual,
                          const Dropout& dropout) {
  if (!dropout.active(run)) {
    linear.forward(run, x, y, residual);
    return;
  }
  linear.forward(run, x, y);
  run.ops.dropout({.x = y,
                   .y = y,
                   .residual = residual,
                   .rows = dropout.tp.own_rows(run.mb.rows),
                   .rate = dropout.rate,
                   .key = dropout.key});
}

Tensor gradient_before_dropout(Run& run, const Linear& linear, const Tensor& dy, const Dropout& dropout,
                               std::string_view tag) {
  Arena& until_w = run.stash.arena(Life::b_to_w);
  if (!dropout.active(run)) return linear.gradient_of_all_rows(run, dy, until_w, tag);
  const Tensor dx = (dropout.tp.cuts_rows() ? run.scratch : until_w).take(dy.shape, dy.dtype, tag);
  run.ops.dropout({.x = dy,
                   .y = dx,
                   .residual = {},
                   .rows = dropout.tp.own_rows(run.mb.rows),
                   .rate = dropout.rate,
                   .key = dropout.key});
  return linear.gradient_of_all_rows(run, dx, until_w, tag);
}

}  // namespace tera
