#include "tera/nn/mixers/attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tera/base/error.h"
#include "tera/nn/mixers/context_attention.h"
#include "tera/ops/attention.h"
#include "tera/ops/copy.h"

namespace tera {

std::unique_ptr<Branch> AttentionSpec::build(const BuildContext& context) const {
  return std::make_unique<Attention>(*this, context);
}

Attention::Attention(const AttentionSpec& spec, const BuildContext& context)
    : spec_(spec),
      tp_(context.tp),
      cp_(context.cp),
      qkv_(context.params, spec.qkv, tp_),
      out_(context.params, spec.out, tp_),
      dropout_key_(rng_stream(spec.seed, spec.name + ".attention_dropout")) {
  spec_.heads /= tp_.size();
  spec_.kv_heads = std::max<std::int64_t>(spec.kv_heads / tp_.size(), 1);  // fewer than ranks: some replicate one
  if (spec.rope) rope_.emplace(context.params, *spec.rope);
  if (spec.q_norm) {
    q_norm_.emplace(context.params, *spec.q_norm, tp_);
    k_norm_.emplace(context.params, *spec.k_norm, tp_);
  }
}

// Views of the heads in rows that have 1 / ranks of them.
Attention::Heads Attention::heads_of(const Tensor& qkv, int ranks) const {
  const std::int64_t n = spec_.heads / ranks, g = spec_.kv_heads / ranks, d = spec_.head_dim;
  const auto view = [&](std::int64_t first, std::int64_t heads) {
    return qkv.slice(1, first * d, (first + heads) * d).split_last(heads, d);
  };
  return {view(0, n), view(n, g), view(n + g, g), view(0, n + g)};
}

// q and k as attention sees them; v is never changed.
Attention::Heads Attention::rotated_heads(const AttentionSaved& saved) const {
  Heads heads = heads_of(saved.qkv);
  if (!q_norm_) return heads;
  heads.qk = saved.qk.split_last(spec_.heads + spec_.kv_heads, spec_.head_dim);
  heads.q = heads.qk.slice(1, 0, spec_.heads);
  heads.k = heads.qk.slice(1, spec_.heads, spec_.heads + spec_.kv_heads);
  return heads;
}

// The heads that attention gets here: with Ulysses this rank's heads of all rows.
Attention::Heads Attention::attending_heads(const Run& run, const AttentionSaved& saved) const {
  const int ranks = cp_.of(run).head_ranks();
  return ranks == 1 ? rotated_heads(saved) : heads_of(saved.all, ranks);
}

AttentionShape Attention::shape_of(const Run& run) const {
  const ContextParallel& cp = cp_.of(run);
  AttentionShape shape{.batch = run.mb.batch,
                       .q_offsets = run.mb.offsets,
                       .k_offsets = run.mb.offsets,
                       .mask = spec_.mask,
                       .window = spec_.window,
                       .scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim)),
                       .first_head = tp_.rank() * spec_.heads + cp.head_rank() * (spec_.heads / cp.head_ranks())};
  if (run.mb.training && spec_.dropout > 0) {
    shape.dropout = spec_.dropout;
    shape.key = dropout_key_;
    shape.q_rows = shape.k_rows = cp.row_ids(run);
  }
  return shape;
}

void Attention::take_saved(Run& run, AttentionSaved& s, DType dtype) const {
  const std::int64_t tokens = run.mb.tokens.dim(0), q_width = spec_.heads * spec_.head_dim,
                     kv_width = spec_.kv_heads * spec_.head_dim;
  const std::int64_t ranks = cp_.of(run).head_ranks();
  const auto until_b = [&](bool kept, std::int64_t columns, std::string_view tag) {
    return kept ? run.stash.take(Life::f_to_b, shape(tokens, columns), dtype, tag)
                : run.scratch.take(shape(tokens, columns), dtype, tag);
  };
  s.qkv = until_b(ranks == 1 || q_norm_, q_width + 2 * kv_width, "attention.qkv");
  s.out = run.stash.take(Life::f_to_w, shape(tokens, q_width), dtype, "attention.out");
  s.all_out = s.out;
  if (ranks > 1) {
    const auto all = [&](std::int64_t width) { return shape(tokens * ranks, width / ranks); };
    s.all = run.stash.take(Life::f_to_b, all(q_width + 2 * kv_width), dtype, "attention.all_qkv");
    s.all_out = run.stash.take(Life::f_to_b, all(q_width), dtype, "attention.all_out");
  }
  s.lse = run.stash.take(Life::f_to_b, shape(spec_.heads / ranks, tokens * ranks), DType::f32, "attention.lse");
  if (!q_norm_) return;
  const Heads heads = heads_of(s.qkv);
  s.qk = until_b(ranks == 1, q_width + kv_width, "attention.qk");
  s.q_stats = q_norm_->take_stats(run, heads.q, "attention.qk_norm_stats");
  s.k_stats = k_norm_->take_stats(run, heads.k, "attention.qk_norm_stats");
}

void Attention::norm_and_rotate(Run& run, AttentionSaved& s) const {
  const Heads rotated = rotated_heads(s);
  if (q_norm_) {
    const Heads projected = heads_of(s.qkv);
    q_norm_->forward(run, projected.q, rotated.q, s.q_stats);
    k_norm_->forward(run, projected.k, rotated.k, s.k_stats);
  }
  if (rope_) rope_->forward(run, rotated.qk);
}

void Attention::attend(Run& run, AttentionSaved& s) const {
  const ContextParallel& cp = cp_.of(run);
  const Heads local = rotated_heads(s);
  cp.all_to_all_to_heads(run, std::array{local.q, local.k, local.v}, s.all);
  const Heads heads = attending_heads(run, s);
  attend_over_ranks(
      run, cp,
      {.q = heads.q, .k = heads.k, .v = heads.v, .out = split_out(s.all_out), .lse = s.lse, .shape = shape_of(run)});
  cp.all_to_all_to_rows(run, s.all_out, std::array{split_out(s.out)});
}

// Makes s.dqkv, before the backward of RoPE.
void Attention::attend_back(Run& run, const AttentionSaved& s, const Tensor& dattended) const {
  ScratchScope scope(run.scratch);
  const ContextParallel& cp = cp_.of(run);
  const bool alone = cp.head_ranks() == 1;
  const Tensor all_dout = alone ? dattended : run.scratch.take(s.all_out.shape, s.out.dtype, "attention.all_dout");
  const Tensor all_dqkv = alone ? s.dqkv : run.scratch.take(s.all.shape, s.out.dtype, "attention.all_dqkv");
  cp.all_to_all_to_heads(run, std::array{split_out(dattended)}, all_dout);
  const Heads heads = attending_heads(run, s), grads = heads_of(all_dqkv, cp.head_ranks());
  attend_back_over_ranks(run, cp,
                         {.q = heads.q,
                          .k = heads.k,
                          .v = heads.v,
                          .out = split_out(s.all_out),
                          .dout = split_out(all_dout),
                          .lse = s.lse,
                          .dq = grads.q,
                          .dk = grads.k,
                          .dv = grads.v,
                          .shape = shape_of(run)});
  const Heads local = heads_of(s.dqkv);
  cp.all_to_all_to_rows(run, all_dqkv, std::array{local.q, local.k, local.v});
}

// Generation: this call's keys and values are appended to the KV cache, and its queries attend to all of it.
void Attention::attend_cached(Run& run, AttentionSaved& s) const {
  require(run.mb.batch == 1 && !run.mb.offsets, "a KV cache holds one sequence, not {}", run.mb.batch);
  const Heads heads = rotated_heads(s);
  const KvCache::Layer& cache = run.mb.cache->layers[static_cast<std::size_t>(spec_.layer)];
  const std::int64_t past = run.mb.cache->past, end = past + heads.k.dim(0);
  run.ops(CopyArgs{.src = heads.k, .dst = cache.k.rows(past, end)});
  run.ops(CopyArgs{.src = heads.v, .dst = cache.v.rows(past, end)});
  run.ops(AttentionArgs{.q = heads.q,
                        .k = cache.k.rows(0, end),
                        .v = cache.v.rows(0, end),
                        .out = s.out.split_last(spec_.heads, spec_.head_dim),
                        .lse = s.lse,
                        .shape = shape_of(run)});
}

void Attention::f(Run& run, AttentionSaved& s, BranchInput& input, const Tensor& y, const Tensor& residual) const {
  const Tensor x = input.get(run);
  take_saved(run, s, x.dtype);
  qkv_.forward(run, x, s.qkv);
  norm_and_rotate(run, s);
  if (run.mb.cache) {
    attend_cached(run, s);
  } else {
    attend(run, s);
  }
  out_.forward(run, s.out, y, residual);
}

Ticket Attention::b(Run& run, AttentionSaved& s, BranchInput& input, const Tensor& dy) const {
  s.dqkv = run.stash.take(Life::b_to_w, s.qkv.shape, s.qkv.dtype, "attention.dqkv");
  const Linear::OutputGradient dout = out_.take_output_gradient(run, dy, "attention.dprojected");
  s.dout = dout.kept;
  const Tensor dattended = run.scratch.take(s.out.shape, s.out.dtype, "attention.dout");
  run.ops.wait(out_.backward_input(run, dout.all, dattended));

  attend_back(run, s, dattended);
  const Heads grads = heads_of(s.dqkv);
  if (rope_) rope_->backward(run, grads.qk);
  if (q_norm_) {
    const Heads projected = heads_of(s.qkv);
    q_norm_->backward(run, grads.q, projected.q, s.q_stats, {}, grads.q);
    k_norm_->backward(run, grads.k, projected.k, s.k_stats, {}, grads.k);
  }

  const Ticket summed = qkv_.backward_input(run, s.dqkv, input.gradient(run));
  if (run.w_in_b) qkv_.backward_weight(run, input.get(run), s.dqkv);
  return summed;
}

void Attention::w(Run& run, AttentionSaved& s, BranchInput& input, const Tensor& /*dy*/) const {
  out_.backward_weight(run, s.out, s.dout);
  if (!run.w_in_b) qkv_.backward_weight(run, input.get(run), s.dqkv);
}

}  // namespace tera
