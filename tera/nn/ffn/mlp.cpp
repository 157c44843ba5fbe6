#include "tera/nn/ffn/mlp.h"

#include "tera/ops/pointwise.h"

namespace tera {

Mlp::Mlp(ParamStore& params, const MlpSpec& spec, const TensorParallel& tp)
    : spec_(spec),
      tp_(tp),
      norm_(params, spec.norm, tp),
      up_(params, spec.up, tp),
      down_(params, spec.down, tp),
      hidden_key_(rng_stream(spec.seed, spec.name + ".hidden_dropout")) {}

void Mlp::f(Run& run, MlpSaved& s, const Tensor& x, const Tensor& y) {
  const auto take = [&](bool recompute, const Shape& shape, std::string_view tag) {  // kept for W, or recomputed in B
    return recompute ? run.scratch.take(shape, x.dtype, tag) : run.stash.take(Life::f_to_w, shape, x.dtype, tag);
  };
  s.stats = norm_.take_stats(run, x, "mlp.norm_stats");
  s.normed = take(spec_.recompute_norm, x.shape, "mlp.normed");
  const std::int64_t tokens = run.mb.tokens.dim(0);
  s.up = run.stash.take(Life::f_to_b, shape(tokens, up_.out_features()), x.dtype, "mlp.up");
  s.act = take(spec_.recompute_activation, shape(tokens, up_.out_features() / (is_gated(spec_.activation) ? 2 : 1)),
               "mlp.act");
  norm_.forward(run, x, s.normed, s.stats);
  up_.forward(run, s.normed, s.up, ActivationArgs{.kind = spec_.activation, .x = s.up, .y = s.act});
  forward_with_dropout(run, down_, s.act, y, /*residual=*/x, dropout());
}

void Mlp::b(Run& run, MlpSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  s.dup = run.stash.take(Life::b_to_w, s.up.shape, s.up.dtype, "mlp.dup");
  const ProjectionGradient ddown = gradient_before_dropout(run, down_, dy, dropout(), "mlp.ddown");
  s.ddown = ddown.kept;
  const Tensor dact = run.scratch.take(s.act.shape, x.dtype, "mlp.dact");
  const Tensor dnormed = run.scratch.take(x.shape, x.dtype, "mlp.dnormed");
  down_.backward_input(run, ddown.all,
                       ActivationBackArgs{.kind = spec_.activation, .dy = dact, .x = s.up, .dx = s.dup});
  const Ticket summed = up_.backward_input(run, s.dup, dnormed);
  if (spec_.recompute_activation) {
    s.act = run.stash.take(Life::b_to_w, s.act.shape, x.dtype, "mlp.act");
    run.ops(ActivationArgs{.kind = spec_.activation, .x = s.up, .y = s.act});
  }
  if (spec_.recompute_norm) {
    s.normed = run.stash.take(Life::b_to_w, x.shape, x.dtype, "mlp.normed");
    norm_.forward(run, x, s.normed, s.stats);
  }
  if (run.w_in_b) up_.backward_weight(run, s.normed, s.dup);
  run.ops.wait(summed);
  norm_.backward(run, dnormed, x, s.stats, /*residual=*/dy, dx);
}

void Mlp::w(Run& run, MlpSaved& s, const Tensor& /*dy*/) {
  down_.backward_weight(run, s.act, s.ddown);
  if (!run.w_in_b) up_.backward_weight(run, s.normed, s.dup);
}

}  // namespace tera
