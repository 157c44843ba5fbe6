#include "tera/nn/ffn/router.h"

#include <array>

#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/gemm.h"

namespace tera {
namespace {

// The sum over sequences of x [p,E], as [1,E].
Tensor over_sequences(Run& run, const Tensor& x, std::string_view tag) {
  if (x.dim(0) == 1) return x;
  const Tensor sum = run.scratch.take(shape(1, x.dim(1)), x.dtype, tag);
  run.ops(CopyArgs{.src = x.rows(0, 1), .dst = sum});
  for (std::int64_t sequence = 1; sequence < x.dim(0); ++sequence) {
    const std::array sources{sum, x.rows(sequence, sequence + 1)};
    run.ops(CombineArgs{.sources = sources, .out = sum});
  }
  return sum;
}

}  // namespace

Router::Router(ParamStore& params, const RouterSpec& spec, const TensorParallel& tp, const ContextParallel& cp)
    : spec_(spec), tp_(tp), cp_(cp) {
  const Shape size = shape(spec.experts, spec.hidden);
  const std::string name = spec.name + ".weight";
  weight_ = &params.add({.name = name,
                         .shape = size,
                         .parts = {tp.replicated({.name = name, .global = size})},
                         .init = {.kind = Init::Kind::normal, .std = spec.init_std},
                         .partial_gradient = tp.cuts_rows(),
                         .first_use_overwrites = true});
  const auto add_state = [&](const std::string& state, ParamSpec::Counts counts) {
    return &params.add({.name = state,
                        .shape = shape(spec.experts),
                        .parts = {tp.replicated({.name = state, .global = shape(spec.experts)})},
                        .init = {},
                        .counts = counts,
                        .router_layer = spec.layer});
  };
  if (!spec.bias.empty()) bias_ = add_state(spec.bias, ParamSpec::Counts::bias);
  if (spec.global_balance > 0)
    fractions_ = add_state("optimizer.expert_shares." + spec.name, ParamSpec::Counts::shares);
}

// Statistics are of each sequence where a loss needs that, else of all rows.
Router::Sequences Router::sequences(const Run& run, std::int64_t rows) const {
  const std::int64_t tokens = run.mb.tokens.dim(0);
  const std::int64_t number = spec_.sequence_balance > 0 ? run.mb.batch : 1;
  return {.number = number, .rows = tokens / number, .first_row = rows == tokens ? 0 : tp_.rank() * rows};
}

Routes Router::take(Run& run, std::int64_t rows) const {
  const auto take = [&](bool wanted, const Shape& shape, DType dtype, std::string_view tag) {
    return wanted ? run.stash.take(Life::f_to_b, shape, dtype, tag) : Tensor{};
  };
  const Shape choices = shape(rows, topk()), sums = shape(sequences(run, rows).number, spec_.experts);
  const bool training = run.mb.training, counted = spec_.layer >= 0 && run.mb.expert_counts;
  return {.logits = take(true, shape(rows, spec_.experts), DType::f32, "moe.logits"),
          .experts = take(true, choices, DType::i32, "moe.experts"),
          .weights = take(true, choices, DType::f32, "moe.weights"),
          .counts = take(training && (counted || spec_.needs_counts()), sums, DType::i32, "moe.counts"),
          .score_sums = take(training && spec_.balances(), sums, DType::f32, "moe.score_sums"),
          .z_sum = take(training && spec_.z > 0 && run.mb.aux_losses, shape(1), DType::f32, "moe.z_sum")};
}

void Router::route(Run& run, const Tensor& normed, const Routes& routes) const {
  run.ops(GemmArgs{.a = normed, .b = weight_->value, .out = routes.logits, .trans_b = true});
  const Sequences sequences = this->sequences(run, normed.dim(0));
  run.ops(RouteArgs{.logits = routes.logits,
                    .bias = bias_ ? bias_->value : Tensor{},
                    .rows = tp_.local_rows(run.mb.rows),
                    .experts = routes.experts,
                    .weights = routes.weights,
                    .counts = routes.counts,
                    .score_sums = routes.score_sums,
                    .z_sum = routes.z_sum,
                    .part_rows = sequences.rows,
                    .first_row = sequences.first_row,
                    .rule = spec_.rule});
  if (routes.counts && spec_.needs_counts()) sum_over_ranks(run, routes.counts);
  if (routes.score_sums) sum_over_ranks(run, routes.score_sums);
}

// Sums over all ranks that have rows of their own.
void Router::sum_over_ranks(Run& run, const Tensor& x) const {
  if (tp_.cuts_rows()) run.ops.wait(tp_.group->all_reduce(x, Reduce::sum, run.ops.record()));
  if (cp_.size() > 1) run.ops.wait(cp_.group->all_reduce(x, Reduce::sum, run.ops.record()));
}

// Where a loss that all ranks of a microbatch know is summed: on one rank in the sums of the step, on others in
// scratch. All take the same memory and make the same calls, so that the plan of one is that of all.
Tensor Router::loss_sum_of(Run& run, AuxLoss loss) const {
  const auto row = static_cast<std::int64_t>(loss);
  const Tensor nowhere = run.scratch.take(shape(1), DType::f32, "moe.balance_loss");
  run.ops(FillArgs{.out = nowhere, .value = 0});
  return run.mb.aux_losses && tp_.rank() == 0 && cp_.rank() == 0 ? run.mb.aux_losses.rows(row, row + 1) : nowhere;
}

// The factor of each score in the auxiliary load-balancing losses: f32 [p,E].
Tensor Router::loads(Run& run, const Routes& routes) const {
  if (!routes.score_sums) return {};
  const auto add = [&](AuxLoss kind, BalanceLossArgs loss) {
    loss.scale = run.mb.aux_scale;
    loss.loss = loss_sum_of(run, kind);
    loss.topk = topk();
    loss.rows = all_tokens(run) / loss.score_sums.dim(0);
    run.ops(loss);
  };
  const auto take = [&](const Tensor& sums) { return run.scratch.take(sums.shape, DType::f32, "moe.loads"); };
  Tensor each, all;
  if (spec_.sequence_balance > 0) {
    each = take(routes.score_sums);
    add(AuxLoss::sequence_balance, {.counts = routes.counts,
                                    .score_sums = routes.score_sums,
                                    .loads = each,
                                    .coefficient = spec_.sequence_balance});
  }
  if (spec_.balance <= 0 && spec_.global_balance <= 0) return each;
  const Tensor sums = over_sequences(run, routes.score_sums, "moe.all_score_sums");
  all = take(sums);
  if (spec_.balance > 0)
    add(AuxLoss::balance, {.counts = over_sequences(run, routes.counts, "moe.all_counts"),
                           .score_sums = sums,
                           .loads = all,
                           .coefficient = spec_.balance});
  if (spec_.global_balance > 0)
    add(AuxLoss::global_balance, {.shares = fractions_->value.view(sums.shape),
                                  .score_sums = sums,
                                  .loads = all,
                                  .coefficient = spec_.global_balance,
                                  .accumulate = spec_.balance > 0});
  if (!each) return all;
  for (std::int64_t sequence = 0; sequence < each.dim(0); ++sequence) {
    const std::array sources{each.rows(sequence, sequence + 1), all};
    run.ops(CombineArgs{.sources = sources, .out = sources[0]});
  }
  return each;
}

// Adds to the router statistics of the step. What several ranks know alike is added by one of them.
void Router::count(Run& run, const Routes& routes) const {
  const bool first = tp_.rank() == 0, some_rows = tp_.cuts_rows();
  const auto add = [&](const Tensor& x, const Tensor& sum) {
    const std::array sources{sum, x};
    run.ops(CombineArgs{.sources = sources, .out = sum});
  };
  if (routes.z_sum && (first || some_rows)) {
    const auto row = static_cast<std::int64_t>(AuxLoss::z);
    add(routes.z_sum, run.mb.aux_losses.rows(row, row + 1));
  }
  if (!routes.counts || !run.mb.expert_counts || spec_.layer < 0) return;
  const bool summed = spec_.needs_counts();  // in F, over all ranks
  if (summed ? !first || cp_.rank() > 0 : !first && !some_rows) return;
  const Tensor sum = run.mb.expert_counts.rows(spec_.layer, spec_.layer + 1);
  for (std::int64_t sequence = 0; sequence < routes.counts.dim(0); ++sequence)
    add(routes.counts.rows(sequence, sequence + 1), sum);
}

Tensor Router::back(Run& run, const Routes& routes, const Tensor& dweights, DType dtype) const {
  const Sequences sequences = this->sequences(run, dweights.dim(0));
  const Tensor kept = run.stash.take(Life::b_to_w, routes.logits.shape, dtype, "moe.dlogits");
  ScratchScope scope(run.scratch);
  const Tensor dlogits = dtype == DType::f32 ? kept : run.scratch.take(routes.logits.shape, DType::f32, "moe.dlogits");
  count(run, routes);
  run.ops(RouteBackArgs{.logits = routes.logits,
                        .experts = routes.experts,
                        .dweights = dweights,
                        .loads = loads(run, routes),
                        .z_scale = spec_.z > 0 ? run.mb.aux_scale : Tensor{},
                        .z_coefficient = static_cast<float>(spec_.z / static_cast<double>(all_tokens(run))),
                        .dlogits = dlogits,
                        .part_rows = sequences.rows,
                        .first_row = sequences.first_row,
                        .rule = spec_.rule});
  if (dlogits.data != kept.data) run.ops(CopyArgs{.src = dlogits, .dst = kept});
  return kept;
}

void Router::input_gradient(Run& run, const Tensor& dlogits, const Tensor& added, const Tensor& dnormed) const {
  run.ops(GemmArgs{.a = dlogits, .b = weight_->value, .out = dnormed, .residual = added});
}

void Router::backward_weight(Run& run, const Tensor& dlogits, const Tensor& normed) const {
  if (!weight_->grad) return;
  run.ops(GemmArgs{
      .a = dlogits, .b = normed, .out = weight_->grad, .trans_a = true, .accumulate = weight_->accumulate_next()});
}

}  // namespace tera
