#include "tera/nn/moe.h"

#include <array>

namespace tera {
namespace {

std::string name_in_files(const ExpertsSpec& spec, std::int64_t expert, const std::string& suffix) {
  return spec.prefix + std::to_string(expert) + suffix + ".weight";
}

// Of each expert [gate | up], this rank's features of both.
Param& add_up(ParamStore& params, const ExpertsSpec& spec, const TensorParallel& tp) {
  std::vector<Part> parts;
  std::int64_t row = 0;
  for (std::int64_t expert = 0; expert < spec.experts; ++expert)
    for (const std::string& suffix : spec.up) {
      const Part whole{
          .name = name_in_files(spec, expert, suffix), .global = shape(spec.ffn, spec.hidden), .local_row = row};
      parts.push_back(tp.piece(whole, 0));
      row += spec.ffn / tp.size();
    }
  return params.add({.name = spec.name + ".up.weight",
                     .shape = shape(row, spec.hidden),
                     .parts = std::move(parts),
                     .init = {.kind = Init::Kind::normal, .std = spec.up_std},
                     .expert = true});
}

Param& add_down(ParamStore& params, const ExpertsSpec& spec, const TensorParallel& tp) {
  std::vector<Part> parts;
  for (std::int64_t expert = 0; expert < spec.experts; ++expert) {
    const Part whole{.name = name_in_files(spec, expert, spec.down),
                     .global = shape(spec.hidden, spec.ffn),
                     .local_row = expert * spec.hidden};
    parts.push_back(tp.piece(whole, 1));
  }
  return params.add({.name = spec.name + ".down.weight",
                     .shape = shape(spec.experts * spec.hidden, spec.ffn / tp.size()),
                     .parts = std::move(parts),
                     .init = {.kind = Init::Kind::normal, .std = spec.down_std},
                     .expert = true});
}

}  // namespace

Moe::Moe(ParamStore& params, const MoeSpec& spec, const TensorParallel& tp)
    : spec_(spec),
      tp_(tp),
      norm_(params, spec.norm, tp),
      router_(params, spec.router, tp),
      experts_(spec.experts.experts),
      ffn_(spec.experts.ffn / tp.size()),
      up_(&add_up(params, spec.experts, tp)),
      down_(&add_down(params, spec.experts, tp)),
      hidden_key_(rng_stream(spec.seed, spec.name + ".hidden_dropout")) {
  if (spec.shared) shared_.emplace(params, *spec.shared, spec.activation, tp);
}

void Moe::f(Run& run, MoeSaved& s, const Tensor& x, const Tensor& y) {
  const auto take = [&](bool recompute, const Shape& shape, std::string_view tag) {  // kept for W, or made again in B
    return recompute ? run.scratch.take(shape, x.dtype, tag) : run.stash.take(Life::f_to_w, shape, x.dtype, tag);
  };
  const std::int64_t rows = run.mb.tokens.dim(0) * router_.topk();
  s.stats = norm_.take_stats(run, x, "moe.norm_stats");
  s.normed = take(spec_.recompute_norm, x.shape, "moe.normed");
  s.routes = router_.take(run, x.dim(0));
  s.up = run.stash.take(Life::f_to_b, shape(rows, gated() ? 2 * ffn_ : ffn_), x.dtype, "moe.up");
  s.act = take(spec_.recompute_activation, shape(rows, ffn_), "moe.act");
  norm_.forward(run, x, s.normed, s.stats);
  router_.route(run, s.normed, s.routes);
  group(run, s);
  {
    ScratchScope scope(run.scratch);
    const Tensor all = tp_.gather(run, s.normed, run.scratch, "moe.all_rows");
    run.ops.grouped_gemm({.a = permuted(run, s, all, "moe.rows"),
                          .b = groups(up_->value),
                          .out = s.up,
                          .offsets = s.offsets,
                          .trans_b = true});
  }
  activate(run, s);
  Tensor residual = drops(run) ? Tensor{} : x;
  if (shared_) residual = shared_->forward(run, s.shared, s.normed, residual);
  sum_experts(run, s, y, residual);
  if (drops(run))
    run.ops.dropout({.x = y,
                     .y = y,
                     .residual = x,
                     .rows = tp_.own_rows(run.mb.rows),
                     .rate = spec_.hidden_dropout,
                     .key = hidden_key_});
}

// Where each of the microbatch's rows goes, once for each expert that it chose.
void Moe::group(Run& run, MoeSaved& s) const {
  const std::int64_t tokens = run.mb.tokens.dim(0), topk = router_.topk();
  s.offsets = run.stash.take(Life::f_to_w, shape(experts_ + 1), DType::i32, "moe.offsets");
  s.sources = run.stash.take(Life::f_to_w, shape(tokens * topk), DType::i32, "moe.sources");
  s.places = run.stash.take(Life::f_to_b, shape(tokens, topk), DType::i32, "moe.places");
  s.weights = tp_.gather(run, s.routes.weights, run.stash.arena(Life::f_to_b), "moe.all_weights");
  ScratchScope scope(run.scratch);
  const Tensor experts = tp_.gather(run, s.routes.experts, run.scratch, "moe.all_experts");
  run.ops.group_rows({.experts = experts, .offsets = s.offsets, .sources = s.sources, .places = s.places});
}

Tensor Moe::permuted(Run& run, const MoeSaved& s, const Tensor& all, std::string_view tag) const {
  const Tensor rows = run.scratch.take(shape(s.sources.dim(0), all.dim(1)), all.dtype, tag);
  run.ops.permute({.x = all, .sources = s.sources, .y = rows, .topk = router_.topk()});
  return rows;
}

void Moe::activate(Run& run, const MoeSaved& s) const {
  run.ops.activation({.kind = spec_.activation, .x = s.up, .y = s.act, .weights = s.weights, .sources = s.sources});
}

// y = residual + what the experts make of each row. The residual enters the sum over ranks once, with the first; that
// of cut rows is added after it.
void Moe::sum_experts(Run& run, const MoeSaved& s, const Tensor& y, const Tensor& residual) const {
  ScratchScope scope(run.scratch);
  const Tensor out = run.scratch.take(shape(s.sources.dim(0), y.dim(1)), y.dtype, "moe.out");
  run.ops.grouped_gemm({.a = s.act, .b = groups(down_->value), .out = out, .offsets = s.offsets, .trans_b = true});
  const bool cut = tp_.cuts_rows(), with_sum = !cut && tp_.rank() == 0;
  const Tensor partial = tp_.room_for_partial(run, y, "moe.y");
  run.ops.unpermute({.x = out, .places = s.places, .y = partial, .residual = with_sum ? residual : Tensor{}});
  run.ops.wait(tp_.reduce(run, partial, y));
  if (!cut || !residual) return;
  const std::array sources{y, residual};
  run.ops.combine({.sources = sources, .out = y});
}

void Moe::b(Run& run, MoeSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  s.dout = dy;
  if (drops(run)) {
    s.dout = run.stash.take(Life::b_to_w, dy.shape, dy.dtype, "moe.dout");
    run.ops.dropout({.x = dy,
                     .y = s.dout,
                     .residual = {},
                     .rows = tp_.own_rows(run.mb.rows),
                     .rate = spec_.hidden_dropout,
                     .key = hidden_key_});
  }
  const Tensor dnormed = run.scratch.take(x.shape, x.dtype, "moe.dnormed");
  const Tensor of_experts = run.scratch.take(x.shape, x.dtype, "moe.dnormed_experts");
  const Tensor all = tp_.gather(run, s.dout, run.scratch, "moe.all_dout");
  const Tensor dweights = experts_back(run, s, all, of_experts);
  if (shared_) shared_->add_input_gradient(run, s.shared, all, of_experts);
  s.dlogits = router_.back(run, s.routes, dweights, x.dtype);
  router_.input_gradient(run, s.dlogits, of_experts, dnormed);
  if (spec_.recompute_activation) {
    s.act = run.stash.take(Life::b_to_w, s.act.shape, x.dtype, "moe.act");
    activate(run, s);
  }
  if (spec_.recompute_norm) {
    s.normed = run.stash.take(Life::b_to_w, x.shape, x.dtype, "moe.normed");
    norm_.forward(run, x, s.normed, s.stats);
  }
  norm_.backward(run, dnormed, x, s.stats, /*residual=*/dy, dx);
}

// Makes dnormed, and returns the gradient of this rank's weights, f32 [t,K].
Tensor Moe::experts_back(Run& run, MoeSaved& s, const Tensor& dout, const Tensor& dnormed) const {
  s.dup = run.stash.take(Life::b_to_w, s.up.shape, s.up.dtype, "moe.dup");
  const Tensor all = run.scratch.take(s.weights.shape, DType::f32, "moe.all_dweights");
  const Tensor own = tp_.cuts_rows() ? run.scratch.take(s.routes.weights.shape, DType::f32, "moe.dweights") : all;
  run.ops.fill({.out = all, .value = 0});  // what no expert took has no row to make it
  ScratchScope scope(run.scratch);
  const Tensor dact = run.scratch.take(s.act.shape, s.up.dtype, "moe.dact");
  {
    ScratchScope inner(run.scratch);
    run.ops.grouped_gemm(
        {.a = permuted(run, s, dout, "moe.dout_rows"), .b = groups(down_->value), .out = dact, .offsets = s.offsets});
  }
  run.ops.activation_back({.kind = spec_.activation,
                           .dy = dact,
                           .x = s.up,
                           .dx = s.dup,
                           .weights = s.weights,
                           .sources = s.sources,
                           .dweights = all});
  run.ops.wait(tp_.reduce(run, all, own));  // each rank has its features' terms
  const Tensor drows = run.scratch.take(shape(s.sources.dim(0), dnormed.dim(1)), s.up.dtype, "moe.drows");
  run.ops.grouped_gemm({.a = s.dup, .b = groups(up_->value), .out = drows, .offsets = s.offsets});
  const Tensor partial = tp_.room_for_partial(run, dnormed, "moe.dnormed_all");
  run.ops.unpermute({.x = drows, .places = s.places, .y = partial, .residual = {}});
  run.ops.wait(tp_.reduce(run, partial, dnormed));
  return own;
}

void Moe::w(Run& run, MoeSaved& s, const Tensor& dy) {
  const Tensor dout = drops(run) ? s.dout : dy;
  router_.backward_weight(run, s.dlogits, s.normed);
  if (shared_) shared_->backward_weight(run, s.shared, s.normed, dout);
  // Rows are gathered and copied again: kept, they would be K times the size of x.
  const auto rows_of = [&](const Tensor& own) {
    return permuted(run, s, tp_.gather(run, own, run.scratch, "moe.all_rows"), "moe.rows");
  };
  if (down_->grad) {
    ScratchScope scope(run.scratch);
    run.ops.grouped_weight_gradient({.a = rows_of(dout), .b = s.act, .out = groups(down_->grad), .offsets = s.offsets});
  }
  if (up_->grad) {
    ScratchScope scope(run.scratch);
    run.ops.grouped_weight_gradient(
        {.a = s.dup, .b = rows_of(s.normed), .out = groups(up_->grad), .offsets = s.offsets});
  }
}

}  // namespace tera
