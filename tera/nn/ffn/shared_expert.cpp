#include "tera/nn/ffn/shared_expert.h"

#include <array>

#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/expert_rows.h"
#include "tera/ops/pointwise.h"
#include "tera/ops/route.h"

namespace tera {

SharedExpert::SharedExpert(ParamStore& params, const SharedExpertSpec& spec, Activation activation,
                           const TensorParallel& tp)
    : activation_(activation), tp_(tp), up_(params, spec.up, tp), down_(params, spec.down, tp) {
  if (spec.gate.empty()) return;
  const RouterRule sigmoid{.score = ScoreFunction::sigmoid, .topk = 1, .renormalize = false};
  gate_.emplace(
      params,
      RouterSpec{.name = spec.gate, .hidden = spec.up.in, .experts = 1, .rule = sigmoid, .init_std = spec.gate_std},
      tp);
}

void SharedExpert::forward_up(Run& run, SharedExpertSaved& s, const Tensor& x) const {
  const std::int64_t tokens = run.mb.tokens.dim(0), features = up_.out_features();
  const std::int64_t width = is_gated(activation_) ? features / 2 : features;
  s.up = run.stash.take(Life::f_to_b, shape(tokens, features), x.dtype, "moe.shared_up");
  s.act = run.stash.take(Life::f_to_w, shape(tokens, width), x.dtype, "moe.shared_act");
  if (gate_) weigh(run, s, x);
  ScratchScope scope(run.scratch);
  up_.forward(run, x, s.up,
              ActivationArgs{.kind = activation_, .x = s.up, .y = s.act, .weights = s.weights, .sources = s.sources});
}

void SharedExpert::forward_down(Run& run, const SharedExpertSaved& s, const Tensor& residual, const Tensor& out) const {
  ScratchScope scope(run.scratch);
  down_.forward(run, s.act, out, residual);
}

// The gate's weight of each row. Grouped by the single expert, rows stay where they are.
void SharedExpert::weigh(Run& run, SharedExpertSaved& s, const Tensor& x) const {
  const std::int64_t tokens = run.mb.tokens.dim(0);
  s.gate = gate_->take(run, x.dim(0));
  s.sources = run.stash.take(Life::f_to_b, shape(tokens), DType::i32, "moe.shared_rows");
  gate_->route(run, x, s.gate);
  s.weights = tp_.gather(run, s.gate.weights, run.stash.arena(Life::f_to_b), "moe.shared_weights");
  ScratchScope scope(run.scratch);
  const Tensor experts = run.scratch.take(shape(tokens, 1), DType::i32, "moe.shared_choice");
  const Tensor places = run.scratch.take(shape(tokens, 1), DType::i32, "moe.shared_places");
  const Tensor offsets = run.scratch.take(shape(2), DType::i32, "moe.shared_offsets");
  run.ops(FillArgs{.out = experts, .value = 0});
  run.ops(GroupRowsArgs{.experts = experts, .offsets = offsets, .sources = s.sources, .places = places});
}

void SharedExpert::take_for_back(Run& run, SharedExpertSaved& s, const Tensor& x) const {
  s.added = run.scratch.take(x.shape, x.dtype, "moe.shared_dnormed");
  if (!gate_) return;
  s.all_dweights = run.scratch.take(s.weights.shape, DType::f32, "moe.shared_all_dweights");
  s.local_dweights =
      tp_.cuts_rows() ? run.scratch.take(s.gate.weights.shape, DType::f32, "moe.shared_dweights") : s.all_dweights;
}

void SharedExpert::back_down(Run& run, SharedExpertSaved& s, const Tensor& dout) const {
  s.dup = run.stash.take(Life::b_to_w, s.up.shape, s.up.dtype, "moe.shared_dup");
  ScratchScope scope(run.scratch);
  const Tensor all_dout = down_.gradient_of_all_rows(run, dout, run.scratch, "moe.shared_dout");
  const Tensor dact = run.scratch.take(s.act.shape, s.up.dtype, "moe.shared_dact");
  // Makes dup, and the gradient of the gate's weights.
  down_.backward_input(run, all_dout,
                       ActivationBackArgs{.kind = activation_,
                                          .dy = dact,
                                          .x = s.up,
                                          .dx = s.dup,
                                          .weights = s.weights,
                                          .sources = s.sources,
                                          .dweights = s.all_dweights});
  if (gate_)
    run.ops.wait(tp_.reduce(run, s.all_dweights, s.local_dweights));  // each rank has the terms of its features
}

void SharedExpert::back_up(Run& run, const SharedExpertSaved& s) const {
  ScratchScope scope(run.scratch);
  run.ops.wait(up_.backward_input(run, s.dup, s.added));
}

void SharedExpert::add_gradient(Run& run, SharedExpertSaved& s, const Tensor& dx) const {
  const std::array sources{dx, s.added};
  run.ops(CombineArgs{.sources = sources, .out = gate_ ? s.added : dx});
  if (!gate_) return;
  s.dlogits = gate_->back(run, s.gate, s.local_dweights, dx.dtype);
  gate_->input_gradient(run, s.dlogits, s.added, dx);
}

void SharedExpert::backward_weight(Run& run, const SharedExpertSaved& s, const Tensor& x, const Tensor& dout) const {
  if (gate_) gate_->backward_weight(run, s.dlogits, x);
  down_.backward_weight(run, s.act, dout);
  up_.backward_weight(run, x, s.dup);
}

}  // namespace tera
