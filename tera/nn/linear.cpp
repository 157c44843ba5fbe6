#include "tera/nn/linear.h"

namespace tera {
namespace {

std::vector<Part> parts_of(const LinearSpec& spec, bool bias) {
  std::vector<Part> parts;
  std::int64_t row = 0;
  for (const auto& out : spec.out) {
    parts.push_back({.name = out.name + (bias ? ".bias" : ".weight"),
                     .global = bias ? shape(out.rows) : shape(out.rows, spec.in),
                     .local_row = row,
                     .transposed = !bias && spec.transposed});
    row += out.rows;
  }
  return parts;
}

}  // namespace

Linear::Linear(ParamStore& params, const LinearSpec& spec) {
  for (const auto& out : spec.out) out_ += out.rows;
  weight_ = &params.add({.name = spec.name + ".weight",
                         .shape = shape(out_, spec.in),
                         .parts = parts_of(spec, false),
                         .init = {.kind = Init::Kind::normal, .std = spec.init_std}});
  if (spec.bias)
    bias_ =
        &params.add({.name = spec.name + ".bias", .shape = shape(out_), .parts = parts_of(spec, true), .decay = false});
}

void Linear::forward(Run& run, const Tensor& x, const Tensor& y, const Tensor& residual) const {
  run.ops.gemm({.a = x,
                .b = weight_->value,
                .out = y,
                .bias = bias_ ? bias_->value : Tensor{},
                .residual = residual,
                .trans_b = true});
}

void Linear::backward_input(Run& run, const Tensor& dy, const Tensor& dx) const {
  run.ops.gemm({.a = dy, .b = weight_->value, .out = dx});
  if (bias_ && bias_->grad) run.ops.column_sum({.x = dy, .out = bias_->grad});
}

void Linear::backward_weight(Run& run, const Tensor& x, const Tensor& dy) const {
  if (weight_->grad) run.ops.gemm({.a = dy, .b = x, .out = weight_->grad, .trans_a = true, .accumulate = true});
}

}  // namespace tera
