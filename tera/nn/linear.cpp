#include "tera/nn/linear.h"

#include <algorithm>
#include <array>

#include "tera/ops/combine.h"
#include "tera/ops/gemm.h"
#include "tera/ops/gemm_activation.h"
#include "tera/ops/pointwise.h"

namespace tera {
namespace {

// Rows of one output that this rank holds. Where there are more ranks than units, several ranks replicate a unit.
Part rows_of(const TensorParallel& tp, const LinearSpec::Out& out, Part part) {
  const std::int64_t ranks = tp.size(), pieces = out.units > 0 ? std::min(ranks, out.units) : ranks;
  const std::int64_t replicas = ranks / pieces, piece = tp.rank() / replicas;
  part.begin = out.first_row + out.rows * piece / pieces;
  part.end = out.first_row + out.rows * (piece + 1) / pieces;
  part.replicas = static_cast<int>(replicas);
  part.replica = static_cast<int>(tp.rank() % replicas);
  return part;
}

bool continues(const Part& before, const Part& part) {
  return before.name == part.name && before.split == 0 && part.split == 0 && before.stop() == part.begin &&
         before.replicas == part.replicas;
}

}  // namespace

std::vector<Part> Linear::parts_of(const LinearSpec& spec, bool bias) const {
  std::vector<Part> parts;
  std::int64_t row = 0;
  for (const auto& out : spec.out) {
    const std::int64_t file_rows = out.file_rows > 0 ? out.file_rows : out.rows;
    Part part{.name = out.name + (bias ? ".bias" : ".weight"),
              .global = bias ? shape(file_rows) : shape(file_rows, spec.in),
              .local_row = row,
              .transposed = !bias && spec.transposed};
    part.begin = out.first_row;
    part.end = out.first_row + out.rows;
    const bool by_columns = split_ == Split::in && !bias;
    part = split_ == Split::out ? rows_of(tp_, out, part) : by_columns ? tp_.piece(part, 1) : tp_.replicated(part);
    row += part.local_shape()[0];
    if (!parts.empty() && continues(parts.back(), part)) {
      parts.back().end = part.end;  // neighbours in the file too
    } else {
      parts.push_back(part);
    }
  }
  return parts;
}

Linear::Linear(ParamStore& params, const LinearSpec& spec, const TensorParallel& tp) : tp_(tp), split_(spec.split) {
  const std::vector<Part> parts = parts_of(spec, false);
  out_ = parts.back().local_row + parts.back().local_shape()[0];
  const bool shared_pieces = std::any_of(parts.begin(), parts.end(), [](const Part& p) { return p.replicas > 1; });
  // Each replica's gradient has the terms of its own query heads, or of its own rows.
  const bool partial = split_ == Split::out ? shared_pieces : split_ == Split::none && tp.cuts_rows();
  weight_ = &params.add({.name = spec.name + ".weight",
                         .shape = shape(out_, split_ == Split::in ? spec.in / tp.size() : spec.in),
                         .parts = parts,
                         .init = {.kind = Init::Kind::normal, .std = spec.init_std},
                         .partial_gradient = partial,
                         .first_use_overwrites = true});
  if (spec.bias)
    bias_ = &params.add({.name = spec.name + ".bias",
                         .shape = shape(out_),
                         .parts = parts_of(spec, true),
                         .init = {},
                         .decay = false,
                         .partial_gradient = partial});
}

GemmArgs Linear::gemm(const Tensor& all, const Tensor& y, const Tensor& residual) const {
  return {.a = all,
          .b = weight_->value,
          .out = y,
          .bias = bias_ ? bias_->value : Tensor{},
          .residual = residual,
          .trans_b = true};
}

void Linear::forward(Run& run, const Tensor& x, const Tensor& y, const Tensor& residual) const {
  if (split_ == Split::in && tp_.size() > 1) return forward_summed(run, x, y, residual);
  const Tensor all = split_ == Split::out ? tp_.gather(run, x, run.scratch, "linear.x") : x;
  run.ops(gemm(all, y, residual));
}

void Linear::forward(Run& run, const Tensor& x, const Tensor& y, const ActivationArgs& activation) const {
  require(split_ != Split::in || tp_.size() == 1, "an activation of a sum over ranks comes behind the sum");
  const Tensor all = split_ == Split::out ? tp_.gather(run, x, run.scratch, "linear.x") : x;
  run.ops(GemmActivationArgs{.gemm = gemm(all, y, {}), .activation = activation});
}

// Bias and residual enter the sum over ranks once, with the first rank; with sequence parallelism the residual, which
// is of local rows, is added after the reduce-scatter.
void Linear::forward_summed(Run& run, const Tensor& x, const Tensor& y, const Tensor& residual) const {
  const bool first = tp_.rank() == 0, cut = tp_.cuts_rows();
  const Tensor partial = tp_.partial_buffer(run, y, "linear.y");
  run.ops(GemmArgs{.a = x,
                   .b = weight_->value,
                   .out = partial,
                   .bias = first && bias_ ? bias_->value : Tensor{},
                   .residual = first && !cut ? residual : Tensor{},
                   .trans_b = true});
  run.ops.wait(tp_.reduce(run, partial, y));
  if (!cut || !residual) return;
  const std::array sources{y, residual};
  run.ops(CombineArgs{.sources = sources, .out = y});
}

Tensor Linear::gradient_of_all_rows(Run& run, const Tensor& dy, Arena& arena, std::string_view tag) const {
  return split_ == Split::in ? tp_.gather(run, dy, arena, tag) : dy;
}

Linear::OutputGradient Linear::take_output_gradient(Run& run, const Tensor& dy, std::string_view tag) const {
  const bool keep_all = run.w_follows || !tp_.cuts_rows();
  const Tensor all = gradient_of_all_rows(run, dy, keep_all ? run.stash.arena(Life::b_to_w) : run.scratch, tag);
  return {all, keep_all ? all : dy};
}

Ticket Linear::backward_input(Run& run, const Tensor& dy, const Tensor& dx) const {
  const bool summed = split_ == Split::out;
  const Tensor partial = summed ? tp_.partial_buffer(run, dx, "linear.dx") : dx;
  run.ops(GemmArgs{.a = dy, .b = weight_->value, .out = partial});
  const Ticket sum = summed ? tp_.reduce(run, partial, dx) : Ticket{};
  bias_gradient(run, dy);
  return sum;
}

void Linear::backward_input(Run& run, const Tensor& dy, const ActivationBackArgs& activation) const {
  require(split_ != Split::out || tp_.size() == 1,
          "the way back through an activation begins behind the sum over ranks");
  run.ops(
      GemmActivationBackArgs{.gemm = {.a = dy, .b = weight_->value, .out = activation.dy}, .activation = activation});
  bias_gradient(run, dy);
}

void Linear::bias_gradient(Run& run, const Tensor& dy) const {
  if (bias_ && bias_->grad) run.ops(ColumnSumArgs{.x = dy, .out = bias_->grad});
}

void Linear::backward_weight(Run& run, const Tensor& x, const Tensor& dy) const {
  if (!weight_->grad) return;
  ScratchScope scope(run.scratch);
  const Tensor all = split_ == Split::out ? tp_.gather(run, x, run.scratch, "linear.x") : x;
  const Tensor all_dy = dy.dim(0) == all.dim(0) ? dy : gradient_of_all_rows(run, dy, run.scratch, "linear.dy");
  run.ops(
      GemmArgs{.a = all_dy, .b = all, .out = weight_->grad, .trans_a = true, .accumulate = weight_->accumulate_next()});
}

}  // namespace tera
