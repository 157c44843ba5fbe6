#include "tera/nn/ffn/moe.h"

#include "tera/ops/copy.h"
#include "tera/ops/grouped_gemm.h"
#include "tera/ops/pointwise.h"

namespace tera {
namespace {

std::string name_in_files(const ExpertsSpec& spec, std::int64_t expert, const std::string& suffix) {
  return spec.prefix + std::to_string(expert) + suffix + ".weight";
}

// The parameter of each expert's [gate | up], with this rank's features of both.
Param& add_up(ParamStore& params, const ExpertsSpec& spec, const ExpertParallel& parallel) {
  std::vector<Part> parts = parallel.parts(spec.experts, [&](std::int64_t expert) {
    std::vector<Part> of_expert;
    for (const std::string& suffix : spec.up)
      of_expert.push_back(
          parallel.piece({.name = name_in_files(spec, expert, suffix), .global = shape(spec.ffn, spec.hidden)}, 0));
    return of_expert;
  });
  const std::int64_t rows = parts.back().local_row + parts.back().local_shape()[0];
  return params.add({.name = spec.name + ".up.weight",
                     .shape = shape(rows, spec.hidden),
                     .parts = std::move(parts),
                     .init = {.kind = Init::Kind::normal, .std = spec.up_std},
                     .expert = true,
                     .first_use_overwrites = true});
}

Param& add_down(ParamStore& params, const ExpertsSpec& spec, const ExpertParallel& parallel) {
  std::vector<Part> parts = parallel.parts(spec.experts, [&](std::int64_t expert) {
    return std::vector{
        parallel.piece({.name = name_in_files(spec, expert, spec.down), .global = shape(spec.hidden, spec.ffn)}, 1)};
  });
  const Part& last = parts.back();
  const Shape local = shape(last.local_row + spec.hidden, last.local_shape()[1]);
  return params.add({.name = spec.name + ".down.weight",
                     .shape = local,
                     .parts = std::move(parts),
                     .init = {.kind = Init::Kind::normal, .std = spec.down_std},
                     .expert = true,
                     .first_use_overwrites = true});
}

}  // namespace

std::unique_ptr<Branch> MoeSpec::build(const BuildContext& context) const {
  return std::make_unique<Moe>(*this, context);
}

Moe::Moe(const MoeSpec& spec, const BuildContext& context)
    : spec_(spec),
      tp_(context.tp),
      routing_tp_{.group = tp_.group, .sequence = tp_.sequence || !context.experts.same_rows},
      router_(context.params, spec.router, routing_tp_, context.cp),
      dispatch_(make_dispatch(spec.dispatcher,
                              {.name = spec.name,
                               .experts = spec.experts.experts,
                               .topk = spec.router.rule.topk,
                               .rank_capacity = spec.rank_capacity,
                               .expert_capacity = spec.expert_capacity,
                               .drop = spec.drop},
                              context.experts)),
      local_experts_(context.experts.local_experts(spec.experts.experts).size()),
      up_(&add_up(context.params, spec.experts, context.experts)),
      down_(&add_down(context.params, spec.experts, context.experts)) {
  ffn_ = down_->spec.shape[1];
  if (spec.shared) shared_.emplace(context.params, *spec.shared, spec.activation, tp_);
}

std::unique_ptr<Saved> Moe::make_saved() const {
  auto saved = std::make_unique<MoeSaved>();
  saved->dispatched = dispatch_->make();
  return saved;
}

void Moe::forward(int phase, Run& run, Saved& saved, BranchInput& input, const Tensor& y,
                  const Tensor& residual) const {
  auto& s = static_cast<MoeSaved&>(saved);
  const Tensor x = input.get(run);
  switch (phase) {
    case 0: return route(run, s, x, residual);
    case 1: return dispatch_rows(run, s, x, residual);
    case 2: return experts_forward(run, s, y, residual);
    default:
      dispatch_->finish_combine(run, s.dispatched, s.sums, local_rows(y), residual_of(s, residual));
      gather_shards(run, y);
  }
}

Ticket Moe::backward_input(int phase, Run& run, Saved& saved, BranchInput& input, const Tensor& dy) const {
  auto& s = static_cast<MoeSaved&>(saved);
  const Tensor dx = input.gradient(run);
  switch (phase) {
    case 0:
      s.dx_experts = run.scratch.take(local_rows(dx).shape, dx.dtype, "moe.dnormed_experts");
      dispatch_dout(run, s, dy);
      break;
    case 1: back_down(run, s, dy); break;
    case 2: back_up(run, s); break;
    default: finish_back(run, s, dy, dx);
  }
  return {};
}

// Without overlap the shared expert is computed here, while the host reads how many rows are sent.
void Moe::route(Run& run, MoeSaved& s, const Tensor& x, const Tensor& residual) const {
  const Tensor local = local_rows(x);
  s.routes = router_.take(run, local.dim(0));
  router_.route(run, local, s.routes);
  if (shared_) s.shared_out = run.scratch.take(x.shape, x.dtype, "moe.shared_out");
  s.mark = run.scratch.mark();
  dispatch_->begin(run, s.dispatched, s.routes, local);
  if (!shared_ || spec_.overlap_shared) return;
  shared_->forward_up(run, s.shared, x);
  shared_->forward_down(run, s.shared, residual, s.shared_out);
}

void Moe::dispatch_rows(Run& run, MoeSaved& s, const Tensor& x, const Tensor& residual) const {
  dispatch_->start_dispatch(run, s.dispatched, s.routes, local_rows(x));
  if (!shared_ || !spec_.overlap_shared) return;
  shared_->forward_up(run, s.shared, x);
  if (dispatch_->starts_with_residual()) shared_->forward_down(run, s.shared, residual, s.shared_out);
}

// What is added to the experts' results, for local rows.
Tensor Moe::residual_of(const MoeSaved& s, const Tensor& residual) const {
  return local_rows(shared_ ? s.shared_out : residual);
}

void Moe::experts_forward(Run& run, MoeSaved& s, const Tensor& y, const Tensor& residual) const {
  const Dispatched& d = s.dispatched;
  const Tensor in = dispatch_->finish_dispatch(run, s.dispatched);
  s.up = run.stash.take(Life::f_to_b, shape(d.rows(), gated() ? 2 * ffn_ : ffn_), y.dtype, "moe.up");
  run.ops(GroupedGemmArgs{.a = in,
                          .b = groups(up_->value),
                          .out = s.up,
                          .offsets = d.offsets,
                          .trans_b = true,
                          .expected_rows = d.expected_rows});
  run.scratch.rewind(s.mark);
  const Shape act = shape(d.rows(), ffn_);
  s.act = spec_.recompute_activation ? run.scratch.take(act, y.dtype, "moe.act")  // recomputed in B
                                     : run.stash.take(Life::f_to_w, act, y.dtype, "moe.act");
  activate(run, s);
  const Tensor out = run.scratch.take(shape(d.rows(), y.dim(1)), y.dtype, "moe.out");
  run.ops(GroupedGemmArgs{.a = s.act,
                          .b = groups(down_->value),
                          .out = out,
                          .offsets = d.offsets,
                          .trans_b = true,
                          .expected_rows = d.expected_rows});
  s.sums = dispatch_->start_combine(run, d, out, local_rows(y), residual_of(s, residual));
  if (shared_ && spec_.overlap_shared && !dispatch_->starts_with_residual())
    shared_->forward_down(run, s.shared, residual, s.shared_out);
}

// Gathers the shards of x that were routed by each rank.
void Moe::gather_shards(Run& run, const Tensor& x) const {
  if (shards_rows()) run.ops.wait(routing_tp_.group->all_gather(local_rows(x), x, run.ops.record()));
}

// Dispatches rows of x, or of a tensor like x, to the experts, in scratch.
InFlightTransfer Moe::start_rows(Run& run, const MoeSaved& s, const Tensor& x) const {
  return dispatch_->start_rows(run, s.dispatched, local_rows(x));
}

Tensor Moe::finish_rows(Run& run, const MoeSaved& s, const InFlightTransfer& transfer) const {
  const Tensor rows = run.scratch.take(shape(s.dispatched.rows(), transfer.to.dim(1)), transfer.to.dtype, "moe.rows");
  dispatch_->finish_rows(run, s.dispatched, transfer, rows);
  return rows;
}

void Moe::activate(Run& run, const MoeSaved& s) const {
  run.ops(ActivationArgs{.kind = spec_.activation,
                         .x = s.up,
                         .y = s.act,
                         .weights = s.dispatched.weights,
                         .sources = s.dispatched.sources});
}

void Moe::dispatch_dout(Run& run, MoeSaved& s, const Tensor& dy) const {
  s.dweights = run.scratch.take(s.dispatched.weights.shape, DType::f32, "moe.all_dweights");
  if (shared_ && spec_.overlap_shared) shared_->take_for_back(run, s.shared, dy);
  s.mark = run.scratch.mark();
  s.rows = start_rows(run, s, dy);
  if (shared_ && spec_.overlap_shared) shared_->back_down(run, s.shared, dy);
}

void Moe::back_down(Run& run, MoeSaved& s, const Tensor& dy) const {
  const Dispatched& d = s.dispatched;
  s.dup = run.stash.take(Life::b_to_w, s.up.shape, s.up.dtype, "moe.dup");
  s.dout_rows = {};
  if (spec_.overlap_calls && run.w_follows && down_->grad) {
    s.dout_rows = run.stash.take(Life::b_to_w, shape(d.rows(), dy.dim(1)), dy.dtype, "moe.dout_rows");
    dispatch_->finish_rows(run, d, s.rows, s.dout_rows);
  }
  run.ops(
      FillArgs{.out = s.dweights, .value = 0});  // choices of other ranks' experts, or dropped ones, have no row here
  const Tensor dout_rows = s.dout_rows ? s.dout_rows : finish_rows(run, s, s.rows);
  const Tensor dact = run.scratch.take(s.act.shape, s.up.dtype, "moe.dact");
  run.ops(GroupedGemmArgs{
      .a = dout_rows, .b = groups(down_->value), .out = dact, .offsets = d.offsets, .expected_rows = d.expected_rows});
  run.ops(ActivationBackArgs{.kind = spec_.activation,
                             .dy = dact,
                             .x = s.up,
                             .dx = s.dup,
                             .weights = d.weights,
                             .sources = d.sources,
                             .dweights = s.dweights});
  run.scratch.rewind(s.mark);
}

void Moe::back_up(Run& run, MoeSaved& s) const {
  const Dispatched& d = s.dispatched;
  const Tensor drows = run.scratch.take(shape(d.rows(), s.dx_experts.dim(1)), s.up.dtype, "moe.drows");
  run.ops(GroupedGemmArgs{
      .a = s.dup, .b = groups(up_->value), .out = drows, .offsets = d.offsets, .expected_rows = d.expected_rows});
  s.sums = dispatch_->start_combine(run, d, drows, s.dx_experts, {});
  s.weight_gradients = dispatch_->start_weight_gradients(run, d, s.dweights);
  if (shared_ && spec_.overlap_shared) shared_->back_up(run, s.shared);
}

void Moe::finish_back(Run& run, MoeSaved& s, const Tensor& dy, const Tensor& dx) const {
  dispatch_->finish_combine(run, s.dispatched, s.sums, s.dx_experts, {});
  const Tensor dweights = dispatch_->finish_weight_gradients(run, s.dispatched, s.weight_gradients);
  s.dlogits = router_.back(run, s.routes, dweights, dx.dtype);
  router_.input_gradient(run, s.dlogits, s.dx_experts, local_rows(dx));
  run.scratch.rewind(s.mark);
  gather_shards(run, dx);
  if (shared_ && !spec_.overlap_shared) {
    shared_->take_for_back(run, s.shared, dx);
    shared_->back_down(run, s.shared, dy);
    shared_->back_up(run, s.shared);
  }
  if (shared_) shared_->add_gradient(run, s.shared, dx);
  if (spec_.recompute_activation) {
    s.act = run.stash.take(Life::b_to_w, s.act.shape, dx.dtype, "moe.act");
    activate(run, s);
  }
}

// Rows are dispatched again: kept, they would be K times the size of x. With overlap they are sent before other GEMMs.
void Moe::backward_weight(Run& run, Saved& saved, BranchInput& input, const Tensor& dy) const {
  auto& s = static_cast<MoeSaved&>(saved);
  const Tensor x = input.get(run);
  const bool dout_early = spec_.overlap_shared || spec_.overlap_calls, x_early = spec_.overlap_calls;
  const bool dispatches_dout = down_->grad && !s.dout_rows;
  const std::size_t mark = run.scratch.mark();
  InFlightTransfer dout_rows, x_rows;
  if (dispatches_dout && dout_early) dout_rows = start_rows(run, s, dy);
  if (up_->grad && x_early) x_rows = start_rows(run, s, x);
  router_.backward_weight(run, s.dlogits, local_rows(x));
  if (shared_) shared_->backward_weight(run, s.shared, x, dy);
  const Tensor& offsets = s.dispatched.offsets;
  const std::int64_t expected_rows = s.dispatched.expected_rows;
  if (down_->grad) {
    if (dispatches_dout && !dout_early) dout_rows = start_rows(run, s, dy);
    run.ops(GroupedWeightGradientArgs{.a = s.dout_rows ? s.dout_rows : finish_rows(run, s, dout_rows),
                                      .b = s.act,
                                      .out = groups(down_->grad),
                                      .offsets = offsets,
                                      .expected_rows = expected_rows,
                                      .accumulate = down_->accumulate_next()});
    if (!x_early) run.scratch.rewind(mark);
  }
  if (up_->grad) {
    if (!x_early) x_rows = start_rows(run, s, x);
    run.ops(GroupedWeightGradientArgs{.a = s.dup,
                                      .b = finish_rows(run, s, x_rows),
                                      .out = groups(up_->grad),
                                      .offsets = offsets,
                                      .expected_rows = expected_rows,
                                      .accumulate = up_->accumulate_next()});
  }
}

}  // namespace tera
