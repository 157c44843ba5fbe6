#include "tera/nn/mla.h"

#include <array>

#include "tera/base/error.h"

namespace tera {

Mla::Mla(ParamStore& params, const MlaSpec& spec, const TensorParallel& tp)
    : spec_(spec),
      tp_(tp),
      norm_(params, spec.norm, tp),
      down_(params, spec.down, tp),
      kv_norm_(params, spec.kv_norm, tp),
      q_(params, spec.q, tp),
      kv_(params, spec.kv, tp),
      out_(params, spec.out, tp),
      rope_(params, spec.rope),
      attention_key_(rng_stream(spec.seed, spec.name + ".attention_dropout")),
      hidden_key_(rng_stream(spec.seed, spec.name + ".hidden_dropout")) {
  spec_.heads /= tp.size();
  if (spec.q_norm) q_norm_.emplace(params, *spec.q_norm, tp);
}

AttentionShape Mla::shape_of(const Run& run) const {
  AttentionShape shape{.batch = run.mb.batch,
                       .q_offsets = run.mb.offsets,
                       .k_offsets = run.mb.offsets,
                       .mask = spec_.mask,
                       .window = spec_.window,
                       .scale = spec_.scale,
                       .values = spec_.values,
                       .first_head = tp_.rank() * spec_.heads};
  if (run.mb.training && spec_.attention_dropout > 0) {
    shape.dropout = spec_.attention_dropout;
    shape.key = attention_key_;
    shape.q_rows = shape.k_rows = run.mb.rows;
  }
  return shape;
}

void Mla::take_saved(Run& run, MlaSaved& s, const Tensor& x) const {
  const std::int64_t tokens = run.mb.tokens.dim(0), own = x.dim(0);
  const auto take = [&](Life life, std::int64_t rows, std::int64_t columns, std::string_view tag) {
    return run.stash.take(life, shape(rows, columns), x.dtype, tag);
  };
  s.stats = norm_.take_stats(run, x, "mla.norm_stats");
  s.normed = spec_.recompute_norm ? run.scratch.take(x.shape, x.dtype, "mla.normed")
                                  : run.stash.take(Life::f_to_w, x.shape, x.dtype, "mla.normed");
  s.down = take(Life::f_to_b, own, down_.out_features(), "mla.down");
  if (q_norm_) {
    s.q_stats = q_norm_->take_stats(run, q_part(s.down), "mla.latent_norm_stats");
    s.q_latent = take(Life::f_to_w, own, spec_.q_lora, "mla.q_latent");
  }
  s.kv_stats = kv_norm_.take_stats(run, kv_part(s.down), "mla.latent_norm_stats");
  s.kv_latent = take(Life::f_to_w, own, spec_.kv_lora, "mla.kv_latent");
  take_up(run, s, tokens);
  s.out = take(Life::f_to_w, tokens, spec_.heads * spec_.values, "mla.out");
  s.lse = run.stash.take(Life::f_to_b, shape(spec_.heads, tokens), DType::f32, "mla.lse");
}

void Mla::take_up(Run& run, MlaSaved& s, std::int64_t tokens) const {
  const auto take = [&](std::int64_t columns, std::string_view tag) {
    const Shape rows = shape(tokens, spec_.heads * columns);
    return spec_.recompute_up ? run.scratch.take(rows, s.down.dtype, tag)
                              : run.stash.take(Life::f_to_b, rows, s.down.dtype, tag);
  };
  s.q = take(spec_.head(), "mla.q");
  s.kv = take(spec_.own + spec_.values, "mla.kv");
}

// From what the norm gives to the latents, and the rotary key of all rows, turned.
void Mla::project_down(Run& run, MlaSaved& s) const {
  down_.forward(run, s.normed, s.down);
  if (q_norm_) q_norm_->forward(run, q_part(s.down), s.q_latent, s.q_stats);
  kv_norm_.forward(run, kv_part(s.down), s.kv_latent, s.kv_stats);
  Tensor rotary = rotary_part(s.down);
  if (tp_.cuts_rows()) {
    const Tensor own = run.scratch.take(rotary.shape, rotary.dtype, "mla.rotary");
    run.ops.copy({.src = rotary, .dst = own});
    rotary = own;
  }
  s.rotary = tp_.gather(run, rotary, run.stash.arena(Life::f_to_b), "mla.rotary");
  rope_.forward(run, s.rotary.split_last(1, spec_.rotary));
}

// From the latents to q, turned, and kv.
void Mla::project_up(Run& run, const MlaSaved& s) const {
  q_.forward(run, q_norm_ ? s.q_latent : s.normed, s.q);
  kv_.forward(run, s.kv_latent, s.kv);
  rope_.forward(run, heads_of(s.q), spec_.own);
}

Mla::Keys Mla::expand(Run& run, const MlaSaved& s) const {
  const Shape heads = shape(s.q.dim(0), spec_.heads, spec_.head());
  const Keys keys{.k = run.scratch.take(heads, s.q.dtype, "mla.k"), .v = run.scratch.take(heads, s.q.dtype, "mla.v")};
  run.ops.latent_heads({.kv = heads_of(s.kv), .rotary = s.rotary, .k = keys.k, .v = keys.v});
  return keys;
}

// Generation: this call's keys and values join those of earlier calls, and its queries see them all.
Mla::Keys Mla::join_cache(Run& run, const Keys& keys) const {
  require(run.mb.batch == 1 && !run.mb.offsets, "a KV cache holds one sequence, not {}", run.mb.batch);
  const KvCache::Layer& cache = run.mb.cache->layers[static_cast<std::size_t>(spec_.layer)];
  const std::int64_t past = run.mb.cache->past, end = past + keys.k.dim(0);
  run.ops.copy({.src = keys.k, .dst = cache.k.rows(past, end)});
  run.ops.copy({.src = keys.v, .dst = cache.v.rows(past, end)});
  return {.k = cache.k.rows(0, end), .v = cache.v.rows(0, end)};
}

// Values have fewer channels than queries and keys; attention takes heads of one size. Channels of zeros behind them
// give zeros, forward and backward.
Tensor Mla::padded(Run& run, const Tensor& values, std::string_view tag) const {
  if (!pads()) return heads_of(values);
  const Tensor wide = run.scratch.take(shape(values.dim(0), spec_.heads, spec_.head()), values.dtype, tag);
  run.ops.fill({.out = wide, .value = 0});
  run.ops.copy({.src = heads_of(values), .dst = wide.slice(2, 0, spec_.values)});
  return wide;
}

void Mla::attend(Run& run, const MlaSaved& s) const {
  ScratchScope scope(run.scratch);
  Keys keys = expand(run, s);
  if (run.mb.cache) keys = join_cache(run, keys);
  const Tensor narrow = heads_of(s.out), q = heads_of(s.q);
  const Tensor out = pads() ? run.scratch.take(q.shape, q.dtype, "mla.wide_out") : narrow;
  run.ops.attention({.q = q, .k = keys.k, .v = keys.v, .out = out, .lse = s.lse, .shape = shape_of(run)});
  if (pads()) run.ops.copy({.src = out.slice(2, 0, spec_.values), .dst = narrow});
}

void Mla::f(Run& run, MlaSaved& s, const Tensor& x, const Tensor& y) {
  take_saved(run, s, x);
  norm_.forward(run, x, s.normed, s.stats);
  project_down(run, s);
  project_up(run, s);
  attend(run, s);
  forward_with_dropout(run, out_, s.out, y, /*residual=*/x, dropout());
}

// Makes s.dq, not turned back yet, and the gradients of k and v.
void Mla::attend_back(Run& run, const MlaSaved& s, const Tensor& dout, const Keys& grads) const {
  ScratchScope scope(run.scratch);
  const Keys keys = expand(run, s);
  run.ops.attention_back({.q = heads_of(s.q),
                          .k = keys.k,
                          .v = keys.v,
                          .out = padded(run, s.out, "mla.wide_out"),
                          .dout = padded(run, dout, "mla.wide_dout"),
                          .lse = s.lse,
                          .dq = heads_of(s.dq),
                          .dk = grads.k,
                          .dv = grads.v,
                          .shape = shape_of(run)});
}

// Makes s.dkv and the rotary columns of s.ddown: every rank has what its heads ask of the key that all share.
void Mla::rotary_back(Run& run, const MlaSaved& s, const Keys& grads) const {
  const Tensor to = rotary_part(s.ddown);
  const bool alone = tp_.size() == 1;
  const Tensor all =
      alone ? to : run.scratch.take(shape(s.q.dim(0), spec_.rotary), to.dtype, "mla.drotary_of_these_heads");
  run.ops.latent_heads_back({.dk = grads.k, .dv = grads.v, .dkv = heads_of(s.dkv), .drotary = all});
  rope_.backward(run, all.split_last(1, spec_.rotary));
  if (alone) return;
  const Tensor own = tp_.cuts_rows() ? run.scratch.take(to.shape, to.dtype, "mla.drotary") : all;
  run.ops.wait(tp_.reduce(run, all, own));
  run.ops.copy({.src = own, .dst = to});
}

// Through both latents to what the norm gave.
void Mla::latents_back(Run& run, const MlaSaved& s, const Tensor& dnormed) const {
  const Tensor dq_in = q_norm_ ? run.scratch.take(s.q_latent.shape, dnormed.dtype, "mla.dq_latent")
                               : run.scratch.take(dnormed.shape, dnormed.dtype, "mla.dnormed_of_q");
  const Tensor dkv_latent = run.scratch.take(s.kv_latent.shape, dnormed.dtype, "mla.dkv_latent");
  const Ticket q_summed = q_.backward_input(run, s.dq, dq_in);
  const Ticket kv_summed = kv_.backward_input(run, s.dkv, dkv_latent);
  if (run.w_in_b) kv_.backward_weight(run, s.kv_latent, s.dkv);
  run.ops.wait(q_summed);
  run.ops.wait(kv_summed);
  if (q_norm_) q_norm_->backward(run, dq_in, q_part(s.down), s.q_stats, {}, q_part(s.ddown));
  kv_norm_.backward(run, dkv_latent, kv_part(s.down), s.kv_stats, {}, kv_part(s.ddown));
  run.ops.wait(down_.backward_input(run, s.ddown, dnormed));
  if (q_norm_) return;
  const std::array sources{dnormed, dq_in};
  run.ops.combine({.sources = sources, .out = dnormed});
}

void Mla::b(Run& run, MlaSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  if (spec_.recompute_norm) {
    s.normed = run.stash.take(Life::b_to_w, x.shape, x.dtype, "mla.normed");
    norm_.forward(run, x, s.normed, s.stats);
  }
  if (spec_.recompute_up) {
    take_up(run, s, run.mb.tokens.dim(0));
    project_up(run, s);
  }
  s.dq = run.stash.take(Life::b_to_w, s.q.shape, s.q.dtype, "mla.dq");
  s.dkv = run.stash.take(Life::b_to_w, s.kv.shape, s.kv.dtype, "mla.dkv");
  s.ddown = run.stash.take(Life::b_to_w, s.down.shape, s.down.dtype, "mla.ddown");
  const ProjectionGradient dprojected = gradient_before_dropout(run, out_, dy, dropout(), "mla.dprojected");
  s.dout = dprojected.kept;
  const Tensor dnormed = run.scratch.take(x.shape, x.dtype, "mla.dnormed");
  {
    ScratchScope scope(run.scratch);
    const Tensor dattended = run.scratch.take(s.out.shape, s.out.dtype, "mla.dout");
    run.ops.wait(out_.backward_input(run, dprojected.all, dattended));
    const Shape heads = shape(s.q.dim(0), spec_.heads, spec_.head());
    const Keys grads{.k = run.scratch.take(heads, s.q.dtype, "mla.dk"),
                     .v = run.scratch.take(heads, s.q.dtype, "mla.dv")};
    attend_back(run, s, dattended, grads);
    rope_.backward(run, heads_of(s.dq), spec_.own);
    rotary_back(run, s, grads);
  }
  latents_back(run, s, dnormed);
  norm_.backward(run, dnormed, x, s.stats, /*residual=*/dy, dx);
}

void Mla::w(Run& run, MlaSaved& s, const Tensor& /*dy*/) {
  out_.backward_weight(run, s.out, s.dout);
  q_.backward_weight(run, q_norm_ ? s.q_latent : s.normed, s.dq);
  if (!run.w_in_b) kv_.backward_weight(run, s.kv_latent, s.dkv);
  down_.backward_weight(run, s.normed, s.ddown);
}

}  // namespace tera
