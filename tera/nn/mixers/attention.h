#pragma once
// y = x + o(attention(rope(qkv(norm(x))))). Over context-parallel ranks all but attention itself is of local rows T.

#include <optional>

#include "tera/base/rng.h"
#include "tera/nn/block.h"
#include "tera/nn/context_parallel.h"
#include "tera/nn/dropout.h"
#include "tera/nn/norm.h"
#include "tera/nn/rope.h"
#include "tera/ops/attention.h"

namespace tera {

struct AttentionSpec {
  std::string name;  // for random streams, and for parameters that have no other name
  NormSpec norm;
  LinearSpec qkv, out;  // rows of qkv: [Q | K | V]
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::optional<RopeSpec> rope;
  std::optional<NormSpec> q_norm, k_norm;  // over each head, before rope; both or neither
  Mask mask = Mask::causal;
  std::int64_t window = 0;
  float attention_dropout = 0, hidden_dropout = 0;
  std::uint64_t seed = 0;  // seed of dropout
  int layer = 0;           // index in the KV cache
  bool recompute_norm = false;
};

struct AttentionSaved final : Saved {
  NormStats stats, q_stats, k_stats;
  Tensor normed;   // [T,H]: local rows
  Tensor qkv;      // [T,(N+2G)D]: as projected; q and k are rotated in place unless they are normed
  Tensor qk;       // [T,(N+G)D]: normed and rotated; only with q_norm
  Tensor out;      // [T,ND]
  Tensor all;      // [K,(N+2G)D/cp]: Ulysses: rotated qkv of all rows and this rank's heads
  Tensor all_out;  // [K,ND/cp]: Ulysses: out of all rows and this rank's heads; else out itself
  Tensor lse;      // [N/cp,K]
  Tensor dqkv;     // [T,(N+2G)D]
  Tensor dout;     // [T,H]: gradient of the projection's output; dy itself without dropout and sequence parallelism
};

class Attention final : public BlockOf<AttentionSaved> {
 public:
  Attention(ParamStore& params, const AttentionSpec& spec, const TensorParallel& tp = {},
            const ContextParallel& cp = {});
  const char* kind() const override { return "attention"; }

 private:
  struct Heads {
    Tensor q, k, v;  // [T,N,D] [T,G,D] [T,G,D]
    Tensor qk;       // [T,N+G,D]: q and k side by side
  };
  Heads heads_of(const Tensor& qkv, int ranks = 1) const;
  Heads rotated_heads(const AttentionSaved& saved) const;
  Heads attending_heads(const Run& run, const AttentionSaved& saved) const;
  Tensor split_out(const Tensor& out) const { return out.split_last(out.dim(1) / spec_.head_dim, spec_.head_dim); }
  AttentionShape shape_of(const Run& run) const;
  void take_saved(Run& run, AttentionSaved& saved, const Tensor& x) const;
  void norm_and_rotate(Run& run, AttentionSaved& saved) const;
  void attend(Run& run, AttentionSaved& saved) const;
  void attend_back(Run& run, const AttentionSaved& saved, const Tensor& dattended) const;
  void attend_cached(Run& run, AttentionSaved& saved) const;
  void f(Run& run, AttentionSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, AttentionSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, AttentionSaved& saved, const Tensor& dy) override;

  Dropout dropout() const { return {spec_.hidden_dropout, hidden_key_, tp_}; }

  AttentionSpec spec_;  // heads of this rank
  TensorParallel tp_;
  ContextParallel cp_;
  Norm norm_;
  Linear qkv_, out_;
  std::optional<Rope> rope_;
  std::optional<Norm> q_norm_, k_norm_;
  RngKey attention_key_, hidden_key_;
};

}  // namespace tera
