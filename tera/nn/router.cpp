#include "tera/nn/router.h"

#include <array>

namespace tera {
namespace {

// The sum over parts of x [p,E], as [1,E].
Tensor over_parts(Run& run, const Tensor& x, std::string_view tag) {
  if (x.dim(0) == 1) return x;
  const Tensor sum = run.scratch.take(shape(1, x.dim(1)), x.dtype, tag);
  run.ops.copy({.src = x.rows(0, 1), .dst = sum});
  for (std::int64_t part = 1; part < x.dim(0); ++part) {
    const std::array sources{sum, x.rows(part, part + 1)};
    run.ops.combine({.sources = sources, .out = sum});
  }
  return sum;
}

}  // namespace

Router::Router(ParamStore& params, const RouterSpec& spec, const TensorParallel& tp) : spec_(spec), tp_(tp) {
  const Shape size = shape(spec.experts, spec.hidden);
  const std::string name = spec.name + ".weight";
  weight_ = &params.add({.name = name,
                         .shape = size,
                         .parts = {tp.replicated({.name = name, .global = size})},
                         .init = {.kind = Init::Kind::normal, .std = spec.init_std},
                         .partial_gradient = tp.cuts_rows()});
}

// Sequences, where a loss looks at each of them.
Router::Parts Router::parts(const Run& run, std::int64_t rows) const {
  const std::int64_t tokens = run.mb.tokens.dim(0);
  const std::int64_t number = spec_.sequence_balance > 0 ? run.mb.batch : 1;
  return {.number = number, .rows = tokens / number, .first_row = rows == tokens ? 0 : tp_.rank() * rows};
}

Routes Router::take(Run& run, std::int64_t rows) const {
  const auto take = [&](const Shape& shape, DType dtype, std::string_view tag) {
    return run.stash.take(Life::f_to_b, shape, dtype, tag);
  };
  Routes routes{.logits = take(shape(rows, spec_.experts), DType::f32, "moe.logits"),
                .experts = take(shape(rows, topk()), DType::i32, "moe.experts"),
                .weights = take(shape(rows, topk()), DType::f32, "moe.weights"),
                .counts = {},
                .score_sums = {}};
  if (spec_.balances() && run.mb.training) {
    const Shape sums = shape(parts(run, rows).number, spec_.experts);
    routes.counts = take(sums, DType::i32, "moe.counts");
    routes.score_sums = take(sums, DType::f32, "moe.score_sums");
  }
  return routes;
}

void Router::route(Run& run, const Tensor& normed, const Routes& routes) const {
  run.ops.gemm({.a = normed, .b = weight_->value, .out = routes.logits, .trans_b = true});
  const Parts parts = this->parts(run, normed.dim(0));
  run.ops.route({.logits = routes.logits,
                 .rows = tp_.own_rows(run.mb.rows),
                 .experts = routes.experts,
                 .weights = routes.weights,
                 .counts = routes.counts,
                 .score_sums = routes.score_sums,
                 .part_rows = parts.rows,
                 .first_row = parts.first_row,
                 .rule = spec_.rule});
  if (!routes.counts || !tp_.cuts_rows()) return;
  run.ops.wait(tp_.group->all_reduce(routes.counts, Reduce::sum, run.ops.record()));
  run.ops.wait(tp_.group->all_reduce(routes.score_sums, Reduce::sum, run.ops.record()));
}

// What each score counts in the losses that keep the load even: f32 [p,E]. Their own values are told in `loss`.
Tensor Router::loads(Run& run, const Routes& routes, const Tensor& loss) const {
  if (!routes.counts) return {};
  const std::int64_t tokens = run.mb.tokens.dim(0);
  const auto gradient = [&](double coefficient, const Tensor& counts, const Tensor& sums) {
    const Tensor loads = run.scratch.take(counts.shape, DType::f32, "moe.loads");
    run.ops.balance_loss({.counts = counts,
                          .score_sums = sums,
                          .scale = run.mb.aux_scale,
                          .loads = loads,
                          .loss = loss,
                          .coefficient = coefficient,
                          .topk = topk(),
                          .rows = tokens / counts.dim(0)});
    return loads;
  };
  const Tensor each =
      spec_.sequence_balance > 0 ? gradient(spec_.sequence_balance, routes.counts, routes.score_sums) : Tensor{};
  if (spec_.balance <= 0) return each;
  const Tensor all = gradient(spec_.balance, over_parts(run, routes.counts, "moe.all_counts"),
                              over_parts(run, routes.score_sums, "moe.all_score_sums"));
  if (!each) return all;
  for (std::int64_t part = 0; part < each.dim(0); ++part) {
    const std::array sources{each.rows(part, part + 1), all};
    run.ops.combine({.sources = sources, .out = sources[0]});
  }
  return each;
}

Tensor Router::back(Run& run, const Routes& routes, const Tensor& dweights, DType dtype) const {
  const Parts parts = this->parts(run, dweights.dim(0));
  const Tensor kept = run.stash.take(Life::b_to_w, routes.logits.shape, dtype, "moe.dlogits");
  ScratchScope scope(run.scratch);
  const Tensor loss = run.scratch.take(shape(1), DType::f32, "moe.balance_loss");
  const Tensor dlogits = dtype == DType::f32 ? kept : run.scratch.take(routes.logits.shape, DType::f32, "moe.dlogits");
  run.ops.fill({.out = loss, .value = 0});
  run.ops.route_back({.logits = routes.logits,
                      .experts = routes.experts,
                      .dweights = dweights,
                      .loads = loads(run, routes, loss),
                      .z_scale = spec_.z > 0 ? run.mb.aux_scale : Tensor{},
                      .z_coefficient = static_cast<float>(spec_.z / static_cast<double>(run.mb.tokens.dim(0))),
                      .dlogits = dlogits,
                      .part_rows = parts.rows,
                      .first_row = parts.first_row,
                      .rule = spec_.rule});
  if (dlogits.data != kept.data) run.ops.copy({.src = dlogits, .dst = kept});
  return kept;
}

void Router::input_gradient(Run& run, const Tensor& dlogits, const Tensor& added, const Tensor& dnormed) const {
  run.ops.gemm({.a = dlogits, .b = weight_->value, .out = dnormed, .residual = added});
}

void Router::backward_weight(Run& run, const Tensor& dlogits, const Tensor& normed) const {
  if (!weight_->grad) return;
  run.ops.gemm({.a = dlogits, .b = normed, .out = weight_->grad, .trans_a = true, .accumulate = true});
}

}  // namespace tera
