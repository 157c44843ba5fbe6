#include "tera/nn/mixers/mla.h"

#include <array>

#include "tera/base/error.h"
#include "tera/nn/mixers/context_attention.h"
#include "tera/ops/attention.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/latent_heads.h"

namespace tera {

std::unique_ptr<Branch> MlaSpec::build(const BuildContext& context) const {
  return std::make_unique<Mla>(*this, context);
}

Mla::Mla(const MlaSpec& spec, const BuildContext& context)
    : spec_(spec),
      tp_(context.tp),
      cp_(context.cp),
      down_(context.params, spec.down, tp_),
      kv_norm_(context.params, spec.kv_norm, tp_),
      q_(context.params, spec.q, tp_),
      kv_(context.params, spec.kv, tp_),
      out_(context.params, spec.out, tp_),
      rope_(context.params, spec.rope),
      dropout_key_(rng_stream(spec.seed, spec.name + ".attention_dropout")) {
  spec_.heads /= tp_.size();
  if (spec.q_norm) q_norm_.emplace(context.params, *spec.q_norm, tp_);
}

AttentionShape Mla::shape_of(const Run& run) const {
  AttentionShape shape{.batch = run.mb.batch,
                       .q_offsets = run.mb.offsets,
                       .k_offsets = run.mb.offsets,
                       .mask = spec_.mask,
                       .window = spec_.window,
                       .scale = spec_.scale,
                       .values = spec_.values,
                       .first_head = tp_.rank() * spec_.heads + cp_.of(run).head_rank() * ulysses_heads(run)};
  if (run.mb.training && spec_.dropout > 0) {
    shape.dropout = spec_.dropout;
    shape.key = dropout_key_;
    shape.q_rows = shape.k_rows = cp_.of(run).row_ids(run);
  }
  return shape;
}

void Mla::take_saved(Run& run, MlaSaved& s, const Tensor& x) const {
  const std::int64_t tokens = run.mb.tokens.dim(0), local = x.dim(0);
  const auto take = [&](Life life, std::int64_t rows, std::int64_t columns, std::string_view tag) {
    return run.stash.take(life, shape(rows, columns), x.dtype, tag);
  };
  s.down = take(Life::f_to_b, local, down_.out_features(), "mla.down");
  if (q_norm_) {
    s.q_stats = q_norm_->take_stats(run, q_part(s.down), "mla.latent_norm_stats");
    s.q_latent = take(Life::f_to_w, local, spec_.q_lora, "mla.q_latent");
  }
  s.kv_stats = kv_norm_.take_stats(run, kv_part(s.down), "mla.latent_norm_stats");
  s.kv_latent = take(Life::f_to_w, local, spec_.kv_lora, "mla.kv_latent");
  take_up(run, s, tokens);
  s.out = s.all_out = take(Life::f_to_w, tokens, spec_.heads * spec_.values, "mla.out");
  const std::int64_t all = tokens * cp_.of(run).head_ranks();
  if (cp_.of(run).head_ranks() > 1)
    s.all_out = take(Life::f_to_b, all, ulysses_heads(run) * spec_.values, "mla.all_out");
  s.lse = run.stash.take(Life::f_to_b, shape(ulysses_heads(run), all), DType::f32, "mla.lse");
}

void Mla::take_up(Run& run, MlaSaved& s, std::int64_t tokens) const {
  const std::int64_t ranks = cp_.of(run).head_ranks();
  const auto take = [&](bool kept, const Shape& rows, std::string_view tag) {
    return kept && !spec_.recompute_up ? run.stash.take(Life::f_to_b, rows, s.down.dtype, tag)
                                       : run.scratch.take(rows, s.down.dtype, tag);
  };
  const std::int64_t q = spec_.head(), kv = spec_.nope + spec_.values;
  s.q = s.all_q = take(ranks == 1, shape(tokens, spec_.heads * q), "mla.q");
  s.kv = s.all_kv = take(ranks == 1, shape(tokens, spec_.heads * kv), "mla.kv");
  if (ranks == 1) return;
  s.all_q = take(true, shape(tokens * ranks, ulysses_heads(run) * q), "mla.all_q");
  s.all_kv = take(true, shape(tokens * ranks, ulysses_heads(run) * kv), "mla.all_kv");
}

// Down-projection: from x to the latents and the rotated rotary key.
void Mla::project_down(Run& run, MlaSaved& s, BranchInput& input) const {
  down_.forward(run, input.get(run), s.down);
  if (q_norm_) q_norm_->forward(run, q_part(s.down), s.q_latent, s.q_stats);
  kv_norm_.forward(run, kv_part(s.down), s.kv_latent, s.kv_stats);
  Tensor rotary = rotary_part(s.down);
  if (tp_.cuts_rows() || cp_.of(run).head_ranks() > 1) {
    const Tensor dense = run.scratch.take(rotary.shape, rotary.dtype, "mla.rotary");
    run.ops(CopyArgs{.src = rotary, .dst = dense});
    rotary = dense;
  }
  const bool alone = cp_.of(run).head_ranks() == 1;
  s.rotary = tp_.gather(run, rotary, alone ? run.stash.arena(Life::f_to_b) : run.scratch, "mla.rotary");
  rope_.forward(run, s.rotary.split_last(1, spec_.rotary));
  s.all_rotary = s.rotary;
  if (alone) return;
  const Shape all = shape(s.rotary.dim(0) * cp_.of(run).head_ranks(), spec_.rotary);
  s.all_rotary = run.stash.take(Life::f_to_b, all, rotary.dtype, "mla.all_rotary");
  cp_.of(run).gather(run, s.rotary, s.all_rotary);
}

// Up-projection: from the latents to rotated q and kv, with Ulysses of all rows.
void Mla::project_up(Run& run, MlaSaved& s, BranchInput& input) const {
  q_.forward(run, q_norm_ ? s.q_latent : input.get(run), s.q);
  kv_.forward(run, s.kv_latent, s.kv);
  rope_.forward(run, heads_of(s.q), spec_.nope);
  cp_.of(run).all_to_all_to_heads(run, std::array{heads_of(s.q)}, s.all_q);
  cp_.of(run).all_to_all_to_heads(run, std::array{heads_of(s.kv)}, s.all_kv);
}

Mla::Keys Mla::expand(Run& run, const MlaSaved& s) const {
  const Shape heads = split_ulysses_heads(run, s.all_q).shape;
  const Keys keys{.k = run.scratch.take(heads, s.all_q.dtype, "mla.k"),
                  .v = run.scratch.take(heads, s.all_q.dtype, "mla.v")};
  run.ops(LatentHeadsArgs{.kv = split_ulysses_heads(run, s.all_kv), .rotary = s.all_rotary, .k = keys.k, .v = keys.v});
  return keys;
}

// Generation: appends this call's keys and values to the KV cache, and returns all of it.
Mla::Keys Mla::join_cache(Run& run, const Keys& keys) const {
  require(run.mb.batch == 1 && !run.mb.offsets, "a KV cache holds one sequence, not {}", run.mb.batch);
  const KvCache::Layer& cache = run.mb.cache->layers[static_cast<std::size_t>(spec_.layer)];
  const std::int64_t past = run.mb.cache->past, end = past + keys.k.dim(0);
  run.ops(CopyArgs{.src = keys.k, .dst = cache.k.rows(past, end)});
  run.ops(CopyArgs{.src = keys.v, .dst = cache.v.rows(past, end)});
  return {.k = cache.k.rows(0, end), .v = cache.v.rows(0, end)};
}

// Values have fewer channels than queries and keys; attention takes heads of one size. Zero channels appended to them
// give zeros, forward and backward.
Tensor Mla::padded(Run& run, const Tensor& values, std::string_view tag) const {
  if (!pads()) return split_ulysses_heads(run, values);
  const Tensor wide = run.scratch.take(shape(values.dim(0), ulysses_heads(run), spec_.head()), values.dtype, tag);
  run.ops(FillArgs{.out = wide, .value = 0});
  run.ops(CopyArgs{.src = split_ulysses_heads(run, values), .dst = wide.slice(2, 0, spec_.values)});
  return wide;
}

void Mla::attend(Run& run, const MlaSaved& s) const {
  ScratchScope scope(run.scratch);
  Keys keys = expand(run, s);
  if (run.mb.cache) keys = join_cache(run, keys);
  const Tensor narrow = split_ulysses_heads(run, s.all_out), q = split_ulysses_heads(run, s.all_q);
  const Tensor out = pads() ? run.scratch.take(q.shape, q.dtype, "mla.wide_out") : narrow;
  attend_over_ranks(run, cp_.of(run),
                    {.q = q, .k = keys.k, .v = keys.v, .out = out, .lse = s.lse, .shape = shape_of(run)});
  if (pads()) run.ops(CopyArgs{.src = out.slice(2, 0, spec_.values), .dst = narrow});
  cp_.of(run).all_to_all_to_rows(run, s.all_out, std::array{heads_of(s.out)});
}

void Mla::f(Run& run, MlaSaved& s, BranchInput& input, const Tensor& y, const Tensor& residual) const {
  take_saved(run, s, input.get(run));
  project_down(run, s, input);
  project_up(run, s, input);
  attend(run, s);
  out_.forward(run, s.out, y, residual);
}

// Attention's backward: from dout, of all_out, to dq, of all_q, and the gradients of k and v.
void Mla::attend_back(Run& run, const MlaSaved& s, const Tensor& dout, const Tensor& dq, const Keys& grads) const {
  ScratchScope scope(run.scratch);
  const Keys keys = expand(run, s);
  attend_back_over_ranks(run, cp_.of(run),
                         {.q = split_ulysses_heads(run, s.all_q),
                          .k = keys.k,
                          .v = keys.v,
                          .out = padded(run, s.all_out, "mla.wide_out"),
                          .dout = padded(run, dout, "mla.wide_dout"),
                          .lse = s.lse,
                          .dq = split_ulysses_heads(run, dq),
                          .dk = grads.k,
                          .dv = grads.v,
                          .shape = shape_of(run)});
}

// Makes s.dq, s.dkv and the rotary columns of s.ddown, from the gradient of out.
void Mla::heads_back(Run& run, const MlaSaved& s, const Tensor& dout) const {
  const bool alone = cp_.of(run).head_ranks() == 1;
  const auto all = [&](const Tensor& local, const Tensor& like, std::string_view tag) {
    return alone ? local : run.scratch.take(like.shape, like.dtype, tag);
  };
  const Tensor all_dout = all(dout, s.all_out, "mla.all_dout"), all_dq = all(s.dq, s.all_q, "mla.all_dq");
  const Tensor all_dkv = all(s.dkv, s.all_kv, "mla.all_dkv");
  cp_.of(run).all_to_all_to_heads(run, std::array{heads_of(dout)}, all_dout);
  const Shape heads = split_ulysses_heads(run, s.all_q).shape;
  const Keys grads{.k = run.scratch.take(heads, s.q.dtype, "mla.dk"),
                   .v = run.scratch.take(heads, s.q.dtype, "mla.dv")};
  attend_back(run, s, all_dout, all_dq, grads);
  const Tensor to = rotary_part(s.ddown);
  const bool only_heads = alone && tp_.size() == 1;
  const Tensor drotary = only_heads ? to : run.scratch.take(s.all_rotary.shape, to.dtype, "mla.drotary_of_these_heads");
  run.ops(
      LatentHeadsBackArgs{.dk = grads.k, .dv = grads.v, .dkv = split_ulysses_heads(run, all_dkv), .drotary = drotary});
  cp_.of(run).all_to_all_to_rows(run, all_dq, std::array{heads_of(s.dq)});
  cp_.of(run).all_to_all_to_rows(run, all_dkv, std::array{heads_of(s.dkv)});
  rope_.backward(run, heads_of(s.dq), spec_.nope);
  rotary_back(run, s, drotary);
}

// Every rank has its heads' gradient of the rotary key that all heads share: the rotary columns of s.ddown are the sum.
void Mla::rotary_back(Run& run, const MlaSaved& s, const Tensor& of_these_heads) const {
  const Tensor to = rotary_part(s.ddown);
  Tensor all = of_these_heads;
  if (cp_.of(run).head_ranks() > 1) {
    all = run.scratch.take(shape(s.q.dim(0), spec_.rotary), to.dtype, "mla.drotary_of_own_rows");
    cp_.of(run).reduce(run, of_these_heads, all);
  }
  rope_.backward(run, all.split_last(1, spec_.rotary));
  if (cp_.of(run).head_ranks() == 1 && tp_.size() == 1) return;  // `all` is these columns
  const Tensor local = tp_.cuts_rows() ? run.scratch.take(to.shape, to.dtype, "mla.drotary") : all;
  run.ops.wait(tp_.reduce(run, all, local));
  run.ops(CopyArgs{.src = local, .dst = to});
}

// Backward of both latents: makes dx from s.dq, s.dkv and the rotary columns of s.ddown.
void Mla::latents_back(Run& run, const MlaSaved& s, const Tensor& dx) const {
  const Tensor dq_in = q_norm_ ? run.scratch.take(s.q_latent.shape, dx.dtype, "mla.dq_latent")
                               : run.scratch.take(dx.shape, dx.dtype, "mla.dnormed_of_q");
  const Tensor dkv_latent = run.scratch.take(s.kv_latent.shape, dx.dtype, "mla.dkv_latent");
  const Ticket q_summed = q_.backward_input(run, s.dq, dq_in);
  const Ticket kv_summed = kv_.backward_input(run, s.dkv, dkv_latent);
  if (run.w_in_b) kv_.backward_weight(run, s.kv_latent, s.dkv);
  run.ops.wait(q_summed);
  run.ops.wait(kv_summed);
  if (q_norm_) q_norm_->backward(run, dq_in, q_part(s.down), s.q_stats, {}, q_part(s.ddown));
  kv_norm_.backward(run, dkv_latent, kv_part(s.down), s.kv_stats, {}, kv_part(s.ddown));
  run.ops.wait(down_.backward_input(run, s.ddown, dx));
  if (q_norm_) return;
  const std::array sources{dx, dq_in};
  run.ops(CombineArgs{.sources = sources, .out = dx});
}

Ticket Mla::b(Run& run, MlaSaved& s, BranchInput& input, const Tensor& dy) const {
  if (spec_.recompute_up) {
    take_up(run, s, run.mb.tokens.dim(0));
    project_up(run, s, input);
  }
  s.dq = run.stash.take(Life::b_to_w, s.q.shape, s.q.dtype, "mla.dq");
  s.dkv = run.stash.take(Life::b_to_w, s.kv.shape, s.kv.dtype, "mla.dkv");
  s.ddown = run.stash.take(Life::b_to_w, s.down.shape, s.down.dtype, "mla.ddown");
  const Linear::OutputGradient dout = out_.take_output_gradient(run, dy, "mla.dprojected");
  s.dout = dout.kept;
  const Tensor dinput = input.gradient(run);
  {
    ScratchScope scope(run.scratch);
    const Tensor dattended = run.scratch.take(s.out.shape, s.out.dtype, "mla.dout");
    run.ops.wait(out_.backward_input(run, dout.all, dattended));
    heads_back(run, s, dattended);
  }
  latents_back(run, s, dinput);
  return {};
}

void Mla::w(Run& run, MlaSaved& s, BranchInput& input, const Tensor& /*dy*/) const {
  out_.backward_weight(run, s.out, s.dout);
  q_.backward_weight(run, q_norm_ ? s.q_latent : input.get(run), s.dq);
  if (!run.w_in_b) kv_.backward_weight(run, s.kv_latent, s.dkv);
  down_.backward_weight(run, input.get(run), s.ddown);
}

}  // namespace tera
