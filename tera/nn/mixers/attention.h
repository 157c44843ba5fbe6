#pragma once
// o(attention(rope(qkv(x)))), a branch. Over context-parallel ranks all but attention itself is of local rows T.

#include <optional>

#include "tera/base/rng.h"
#include "tera/nn/branch.h"
#include "tera/nn/context_parallel.h"
#include "tera/nn/linear.h"
#include "tera/nn/norm.h"
#include "tera/nn/rope.h"
#include "tera/ops/attention.h"

namespace tera {

struct AttentionSpec {
  std::string name;     // for random streams, and for parameters that have no other name
  LinearSpec qkv, out;  // rows of qkv: [Q | K | V]
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::optional<RopeSpec> rope;
  std::optional<NormSpec> q_norm, k_norm;  // over each head, before rope; both or neither
  Mask mask = Mask::causal;
  std::int64_t window = 0;
  float dropout = 0;       // softmax dropout
  std::uint64_t seed = 0;  // seed of dropout
  int layer = 0;           // index in the KV cache

  std::unique_ptr<Branch> build(const BuildContext& context) const;
};

struct AttentionSaved final : Saved {
  NormStats q_stats, k_stats;
  Tensor qkv;      // [T,(N+2G)D]: as projected; q and k are rotated in place unless they are normed
  Tensor qk;       // [T,(N+G)D]: normed and rotated; only with q_norm
  Tensor out;      // [T,ND]
  Tensor all;      // [K,(N+2G)D/cp]: Ulysses: rotated qkv of all rows and this rank's heads
  Tensor all_out;  // [K,ND/cp]: Ulysses: out of all rows and this rank's heads; else out itself
  Tensor lse;      // [N/cp,K]
  Tensor dqkv;     // [T,(N+2G)D]
  Tensor dout;     // [T,H]: dy, of all rows or of this rank's (Linear::OutputGradient)
};

class Attention final : public BranchOf<AttentionSaved> {
 public:
  Attention(const AttentionSpec& spec, const BuildContext& context);
  const char* kind() const override { return "attention"; }
  bool w_reads_dy(const Run& run) const override { return out_.w_reads_dy(run); }

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
  void take_saved(Run& run, AttentionSaved& saved, DType dtype) const;
  void norm_and_rotate(Run& run, AttentionSaved& saved) const;
  void attend(Run& run, AttentionSaved& saved) const;
  void attend_back(Run& run, const AttentionSaved& saved, const Tensor& dattended) const;
  void attend_cached(Run& run, AttentionSaved& saved) const;
  void f(Run& run, AttentionSaved& saved, BranchInput& input, const Tensor& y, const Tensor& residual) const override;
  Ticket b(Run& run, AttentionSaved& saved, BranchInput& input, const Tensor& dy) const override;
  void w(Run& run, AttentionSaved& saved, BranchInput& input, const Tensor& dy) const override;

  AttentionSpec spec_;  // heads of this rank
  TensorParallel tp_;
  ContextParallel cp_;
  Linear qkv_, out_;
  std::optional<Rope> rope_;
  std::optional<Norm> q_norm_, k_norm_;
  RngKey dropout_key_;
};

}  // namespace tera
