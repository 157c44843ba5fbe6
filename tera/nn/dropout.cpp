#include "tera/nn/dropout.h"

#include "tera/ops/pointwise.h"

namespace tera {

void forward_with_dropout(Run& run, const Linear& linear, const Tensor& x, const Tensor& y, const Tensor& residual,
                          const Dropout& dropout) {
  if (!dropout.active(run)) {
    linear.forward(run, x, y, residual);
    return;
  }
  linear.forward(run, x, y);
  run.ops(DropoutArgs{.x = y,
                      .y = y,
                      .residual = residual,
                      .rows = dropout.tp.local_rows(run.mb.rows),
                      .rate = dropout.rate,
                      .key = dropout.key});
}

ProjectionGradient gradient_before_dropout(Run& run, const Linear& linear, const Tensor& dy, const Dropout& dropout,
                                           std::string_view tag) {
  Arena& until_w = run.stash.arena(Life::b_to_w);
  const bool keep_all = run.w_follows || !dropout.tp.cuts_rows();
  Tensor local = dy;
  if (dropout.active(run)) {
    local = (keep_all && dropout.tp.cuts_rows() ? run.scratch : until_w).take(dy.shape, dy.dtype, tag);
    run.ops(DropoutArgs{.x = dy,
                        .y = local,
                        .residual = {},
                        .rows = dropout.tp.local_rows(run.mb.rows),
                        .rate = dropout.rate,
                        .key = dropout.key});
  }
  const Tensor all = linear.gradient_of_all_rows(run, local, keep_all ? until_w : run.scratch, tag);
  return {all, keep_all ? all : local};
}

}  // namespace tera
