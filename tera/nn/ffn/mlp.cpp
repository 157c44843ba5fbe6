#include "tera/nn/ffn/mlp.h"

#include "tera/ops/pointwise.h"

namespace tera {

std::unique_ptr<Branch> MlpSpec::build(const BuildContext& context) const {
  return std::make_unique<Mlp>(*this, context);
}

Mlp::Mlp(const MlpSpec& spec, const BuildContext& context)
    : activation_(spec.activation),
      recompute_activation_(spec.recompute_activation),
      up_(context.params, spec.up, context.tp),
      down_(context.params, spec.down, context.tp) {}

void Mlp::f(Run& run, MlpSaved& s, BranchInput& input, const Tensor& y, const Tensor& residual) const {
  const Tensor x = input.get(run);
  const std::int64_t tokens = run.mb.tokens.dim(0);
  s.up = run.stash.take(Life::f_to_b, shape(tokens, up_.out_features()), x.dtype, "mlp.up");
  const Shape act = shape(tokens, up_.out_features() / (is_gated(activation_) ? 2 : 1));
  s.act = recompute_activation_ ? run.scratch.take(act, x.dtype, "mlp.act")
                                : run.stash.take(Life::f_to_w, act, x.dtype, "mlp.act");
  up_.forward(run, x, s.up, ActivationArgs{.kind = activation_, .x = s.up, .y = s.act});
  down_.forward(run, s.act, y, residual);
}

Ticket Mlp::b(Run& run, MlpSaved& s, BranchInput& input, const Tensor& dy) const {
  s.dup = run.stash.take(Life::b_to_w, s.up.shape, s.up.dtype, "mlp.dup");
  const Linear::OutputGradient ddown = down_.take_output_gradient(run, dy, "mlp.ddown");
  s.ddown = ddown.kept;
  const Tensor dact = run.scratch.take(s.act.shape, dy.dtype, "mlp.dact");
  const Tensor dinput = input.gradient(run);
  down_.backward_input(run, ddown.all, ActivationBackArgs{.kind = activation_, .dy = dact, .x = s.up, .dx = s.dup});
  const Ticket summed = up_.backward_input(run, s.dup, dinput);
  if (recompute_activation_) {
    s.act = run.stash.take(Life::b_to_w, s.act.shape, dy.dtype, "mlp.act");
    run.ops(ActivationArgs{.kind = activation_, .x = s.up, .y = s.act});
  }
  if (run.w_in_b) up_.backward_weight(run, input.get(run), s.dup);
  return summed;
}

void Mlp::w(Run& run, MlpSaved& s, BranchInput& input, const Tensor& /*dy*/) const {
  down_.backward_weight(run, s.act, s.ddown);
  if (!run.w_in_b) up_.backward_weight(run, input.get(run), s.dup);
}

}  // namespace tera
