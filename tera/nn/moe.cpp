#include "tera/nn/moe.h"

namespace tera {
namespace {

std::string name_in_files(const ExpertsSpec& spec, std::int64_t expert, const std::string& suffix) {
  return spec.prefix + std::to_string(expert) + suffix + ".weight";
}

// Of each expert [gate | up], this rank's features of both.
Param& add_up(ParamStore& params, const ExpertsSpec& spec, const ExpertParallel& parallel) {
  std::vector<Part> parts = parallel.parts(spec.experts, [&](std::int64_t expert) {
    std::vector<Part> of_expert;
    for (const std::string& suffix : spec.up)
      of_expert.push_back(
          parallel.piece({.name = name_in_files(spec, expert, suffix), .global = shape(spec.ffn, spec.hidden)}, 0));
    return of_expert;
  });
  const std::int64_t rows = parts.back().local_row + parts.back().held()[0];
  return params.add({.name = spec.name + ".up.weight",
                     .shape = shape(rows, spec.hidden),
                     .parts = std::move(parts),
                     .init = {.kind = Init::Kind::normal, .std = spec.up_std},
                     .expert = true});
}

Param& add_down(ParamStore& params, const ExpertsSpec& spec, const ExpertParallel& parallel) {
  std::vector<Part> parts = parallel.parts(spec.experts, [&](std::int64_t expert) {
    return std::vector{
        parallel.piece({.name = name_in_files(spec, expert, spec.down), .global = shape(spec.hidden, spec.ffn)}, 1)};
  });
  const Part& last = parts.back();
  const Shape held = shape(last.local_row + spec.hidden, last.held()[1]);
  return params.add({.name = spec.name + ".down.weight",
                     .shape = held,
                     .parts = std::move(parts),
                     .init = {.kind = Init::Kind::normal, .std = spec.down_std},
                     .expert = true});
}

}  // namespace

Moe::Moe(ParamStore& params, const MoeSpec& spec, const TensorParallel& tp, const ExpertParallel& experts,
         const ContextParallel& cp)
    : spec_(spec),
      tp_(tp),
      own_{.group = tp.group, .sequence = tp.sequence || !experts.same_rows},
      norm_(params, spec.norm, tp),
      router_(params, spec.router, own_, cp),
      dispatch_(make_dispatch(spec.dispatcher,
                              {.experts = spec.experts.experts,
                               .topk = spec.router.rule.topk,
                               .rank_capacity = spec.rank_capacity,
                               .expert_capacity = spec.expert_capacity,
                               .drop = spec.drop},
                              experts)),
      held_(experts.held(spec.experts.experts).size()),
      up_(&add_up(params, spec.experts, experts)),
      down_(&add_down(params, spec.experts, experts)),
      hidden_key_(rng_stream(spec.seed, spec.name + ".hidden_dropout")) {
  ffn_ = down_->spec.shape[1];
  if (spec.shared) shared_.emplace(params, *spec.shared, spec.activation, tp);
}

std::unique_ptr<Saved> Moe::make_saved() const {
  auto saved = std::make_unique<MoeSaved>();
  saved->dispatched = dispatch_->make();
  return saved;
}

void Moe::f(Run& run, MoeSaved& s, const Tensor& x, const Tensor& y) {
  s.stats = norm_.take_stats(run, x, "moe.norm_stats");
  s.normed = spec_.recompute_norm ? run.scratch.take(x.shape, x.dtype, "moe.normed")
                                  : run.stash.take(Life::f_to_w, x.shape, x.dtype, "moe.normed");
  norm_.forward(run, x, s.normed, s.stats);
  const Tensor own = own_rows(s.normed);
  s.routes = router_.take(run, own.dim(0));
  router_.route(run, own, s.routes);
  dispatch_->begin(run, s.dispatched, s.routes, own);
  Tensor residual = drops(run) ? Tensor{} : x;
  if (shared_) residual = shared_->forward(run, s.shared, s.normed, residual);
  dispatch_->finish(run, s.dispatched, s.routes);
  experts_forward(run, s, own_rows(y), residual ? own_rows(residual) : Tensor{});
  gather_shares(run, y);
  if (drops(run))
    run.ops.dropout({.x = y,
                     .y = y,
                     .residual = x,
                     .rows = tp_.own_rows(run.mb.rows),
                     .rate = spec_.hidden_dropout,
                     .key = hidden_key_});
}

// Own rows of x become everybody's.
void Moe::gather_shares(Run& run, const Tensor& x) const {
  if (takes_share()) run.ops.wait(own_.group->all_gather(own_rows(x), x, run.ops.record()));
}

// Rows of x, or of what is like x, where the experts want them: in scratch.
Tensor Moe::rows(Run& run, const MoeSaved& s, const Tensor& x, std::string_view tag) const {
  const Tensor rows = run.scratch.take(shape(s.dispatched.rows(), x.dim(1)), x.dtype, tag);
  dispatch_->rows(run, s.dispatched, own_rows(x), rows);
  return rows;
}

void Moe::activate(Run& run, const MoeSaved& s) const {
  run.ops.activation({.kind = spec_.activation,
                      .x = s.up,
                      .y = s.act,
                      .weights = s.dispatched.weights,
                      .sources = s.dispatched.sources});
}

// Own rows of y = residual + what the experts make of each.
void Moe::experts_forward(Run& run, MoeSaved& s, const Tensor& y, const Tensor& residual) const {
  const std::int64_t rows = s.dispatched.rows(), usual = s.dispatched.usual_rows;
  const Tensor& offsets = s.dispatched.offsets;
  const Shape act = shape(rows, ffn_);
  s.up = run.stash.take(Life::f_to_b, shape(rows, gated() ? 2 * ffn_ : ffn_), y.dtype, "moe.up");
  s.act = spec_.recompute_activation ? run.scratch.take(act, y.dtype, "moe.act")  // made again in B
                                     : run.stash.take(Life::f_to_w, act, y.dtype, "moe.act");
  {
    ScratchScope scope(run.scratch);
    const Tensor in = run.scratch.take(shape(rows, y.dim(1)), y.dtype, "moe.rows");
    dispatch_->rows_of_f(run, s.dispatched, own_rows(s.normed), in);
    run.ops.grouped_gemm(
        {.a = in, .b = groups(up_->value), .out = s.up, .offsets = offsets, .trans_b = true, .usual_rows = usual});
  }
  activate(run, s);
  ScratchScope scope(run.scratch);
  const Tensor out = run.scratch.take(shape(rows, y.dim(1)), y.dtype, "moe.out");
  run.ops.grouped_gemm(
      {.a = s.act, .b = groups(down_->value), .out = out, .offsets = offsets, .trans_b = true, .usual_rows = usual});
  dispatch_->sum(run, s.dispatched, out, y, residual);
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
  const Tensor dnormed = run.scratch.take(x.shape, x.dtype, "moe.dnormed"), own = own_rows(dnormed);
  const Tensor of_experts = run.scratch.take(own.shape, x.dtype, "moe.dnormed_experts");
  const Tensor dweights = experts_back(run, s, s.dout, of_experts);
  s.dlogits = router_.back(run, s.routes, dweights, x.dtype);
  router_.input_gradient(run, s.dlogits, of_experts, own);
  gather_shares(run, dnormed);
  if (shared_) shared_->add_input_gradient(run, s.shared, s.dout, dnormed);
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

// Makes own rows of dnormed, and returns the gradient of own weights, f32 [t,K].
Tensor Moe::experts_back(Run& run, MoeSaved& s, const Tensor& dout, const Tensor& dnormed) const {
  const Dispatched& d = s.dispatched;
  s.dup = run.stash.take(Life::b_to_w, s.up.shape, s.up.dtype, "moe.dup");
  const Tensor dweights = run.scratch.take(d.weights.shape, DType::f32, "moe.all_dweights");
  run.ops.fill({.out = dweights, .value = 0});  // what no expert took has no row to make it
  {
    ScratchScope scope(run.scratch);
    const Tensor dact = run.scratch.take(s.act.shape, s.up.dtype, "moe.dact");
    {
      ScratchScope inner(run.scratch);
      run.ops.grouped_gemm({.a = rows(run, s, dout, "moe.dout_rows"),
                            .b = groups(down_->value),
                            .out = dact,
                            .offsets = d.offsets,
                            .usual_rows = d.usual_rows});
    }
    run.ops.activation_back({.kind = spec_.activation,
                             .dy = dact,
                             .x = s.up,
                             .dx = s.dup,
                             .weights = d.weights,
                             .sources = d.sources,
                             .dweights = dweights});
  }
  {
    ScratchScope scope(run.scratch);
    const Tensor drows = run.scratch.take(shape(d.rows(), dnormed.dim(1)), s.up.dtype, "moe.drows");
    run.ops.grouped_gemm(
        {.a = s.dup, .b = groups(up_->value), .out = drows, .offsets = d.offsets, .usual_rows = d.usual_rows});
    dispatch_->sum(run, d, drows, dnormed, {});
  }
  return dispatch_->weight_gradients(run, d, dweights);
}

void Moe::w(Run& run, MoeSaved& s, const Tensor& dy) {
  const Tensor dout = drops(run) ? s.dout : dy;
  router_.backward_weight(run, s.dlogits, own_rows(s.normed));
  if (shared_) shared_->backward_weight(run, s.shared, s.normed, dout);
  // Rows travel again: kept, they would be K times the size of x.
  const Tensor& offsets = s.dispatched.offsets;
  const std::int64_t usual = s.dispatched.usual_rows;
  if (down_->grad) {
    ScratchScope scope(run.scratch);
    run.ops.grouped_weight_gradient({.a = rows(run, s, dout, "moe.rows"),
                                     .b = s.act,
                                     .out = groups(down_->grad),
                                     .offsets = offsets,
                                     .usual_rows = usual});
  }
  if (up_->grad) {
    ScratchScope scope(run.scratch);
    run.ops.grouped_weight_gradient({.a = s.dup,
                                     .b = rows(run, s, s.normed, "moe.rows"),
                                     .out = groups(up_->grad),
                                     .offsets = offsets,
                                     .usual_rows = usual});
  }
}

}  // namespace tera
