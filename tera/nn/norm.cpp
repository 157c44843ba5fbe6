#include "tera/nn/norm.h"

#include "tera/ops/norm.h"

namespace tera {

Norm::Norm(ParamStore& params, const NormSpec& spec, const TensorParallel& tp) : kind_(spec.kind), eps_(spec.eps) {
  const Shape size = shape(spec.size);
  const bool partial = tp.cuts_rows() || (spec.per_head && tp.size() > 1);
  const auto add = [&](const std::string& name, Init::Kind init) {
    return &params.add({.name = name,
                        .shape = size,
                        .parts = {tp.replicated({.name = name, .global = size})},
                        .init = {.kind = init},
                        .decay = false,
                        .partial_gradient = partial});
  };
  weight_ = add(spec.name + ".weight", Init::Kind::ones);
  if (kind_ == NormKind::layer_norm) bias_ = add(spec.name + ".bias", Init::Kind::zeros);
}

NormStats Norm::take_stats(Run& run, const Tensor& x, std::string_view tag) const {
  const Shape rows = x.shape.rank == 3 ? shape(x.dim(0), x.dim(1)) : shape(x.dim(0));
  NormStats stats;
  stats.rstd = run.stash.take(Life::f_to_b, rows, DType::f32, tag);
  if (kind_ == NormKind::layer_norm) stats.mean = run.stash.take(Life::f_to_b, rows, DType::f32, tag);
  return stats;
}

void Norm::forward(Run& run, const Tensor& x, const Tensor& y, const NormStats& stats) const {
  run.ops(NormArgs{.kind = kind_,
                   .x = x,
                   .weight = weight_->value,
                   .y = y,
                   .bias = bias_ ? bias_->value : Tensor{},
                   .mean = stats.mean,
                   .rstd = stats.rstd,
                   .eps = eps_});
}

void Norm::backward(Run& run, const Tensor& dy, const Tensor& x, const NormStats& stats, const Tensor& residual,
                    const Tensor& dx) const {
  run.ops(NormBackArgs{.kind = kind_,
                       .dy = dy,
                       .x = x,
                       .weight = weight_->value,
                       .rstd = stats.rstd,
                       .mean = stats.mean,
                       .residual = residual,
                       .dx = dx,
                       .dweight = weight_->grad,
                       .dbias = bias_ ? bias_->grad : Tensor{}});
}

}  // namespace tera
