#pragma once
// Multi-head latent attention (MLA): out(attention(q, k, v)), a branch. Queries, keys and values are projected up from
// low-rank latents. RoPE applies to a part of the channels only (decoupled RoPE); the rotary key is shared by all
// heads.
//
//   x [t,H] --down--> [ q latent | kv latent | rotary key ]             local rows t; without q_lora q is made of x
//                              |norm       |norm        |rope
//                          q [T,N(A+R)]  kv [T,N(A+U)]  |               all rows T, heads N of this rank
//                              |rope       |            |
//                              |     k [T,N,A+R] = [ nope | rotary ]   v [T,N,A+R] = [ values | zeros ]
//                              +---------- attention ----------+
//   y [t,H] <--out-- [T,N U]
//
// Over tensor-parallel ranks heads are sharded; the latents are on every rank, and with sequence parallelism it is the
// latents that are gathered. k and v are put together again in B: what all heads share is not kept N times. With
// Ulysses attention is of all rows K and N/cp heads; rotary keys are gathered.

#include <optional>

#include "tera/base/rng.h"
#include "tera/nn/branch.h"
#include "tera/nn/context_parallel.h"
#include "tera/nn/linear.h"
#include "tera/nn/norm.h"
#include "tera/nn/rope.h"
#include "tera/ops/attention.h"

namespace tera {

struct MlaSpec {
  std::string name;                // for random streams
  LinearSpec down;                 // rows: [q latent | kv latent | rotary key]; the first with q_lora only
  std::optional<NormSpec> q_norm;  // only with q_lora
  NormSpec kv_norm;
  LinearSpec q;   // rows of a head: [nope | rotary]; of the latent, or without q_lora of x
  LinearSpec kv;  // rows of a head: [key | value]
  LinearSpec out;
  std::int64_t heads = 0;
  std::int64_t q_lora = 0, kv_lora = 0;           // widths of the latents
  std::int64_t nope = 0, rotary = 0, values = 0;  // channels of a head: A (nope, without RoPE), R (RoPE) and U (values)
  RopeSpec rope;
  float scale = 0;  // factor of the scores
  Mask mask = Mask::causal;
  std::int64_t window = 0;
  float dropout = 0;  // softmax dropout
  std::uint64_t seed = 0;
  int layer = 0;              // index in the KV cache
  bool recompute_up = false;  // q and kv are recomputed in B

  std::int64_t head() const { return nope + rotary; }
  std::unique_ptr<Branch> build(const BuildContext& context) const;
};

struct MlaSaved final : Saved {
  NormStats q_stats, kv_stats;
  Tensor down;       // [t,q_lora+kv_lora+R]
  Tensor q_latent;   // [t,q_lora]: normed
  Tensor kv_latent;  // [t,kv_lora]: normed
  Tensor q;          // [T,N(A+R)]: rotated
  Tensor kv;         // [T,N(A+U)]
  Tensor rotary;     // [T,R]: rotated; a view of down without sequence parallelism and Ulysses
  Tensor out;        // [T,N U]
  // Ulysses: all rows K and N/cp heads, rotary keys of all heads; else the tensors above.
  Tensor all_q, all_kv, all_rotary, all_out;
  Tensor lse;  // [N/cp,K]
  Tensor dq, dkv, ddown;
  Tensor dout;  // [T,H]: dy, of all rows or of this rank's (Linear::OutputGradient)
};

class Mla final : public BranchOf<MlaSaved> {
 public:
  Mla(const MlaSpec& spec, const BuildContext& context);
  const char* kind() const override { return "mla"; }
  bool w_reads_dy(const Run& run) const override { return out_.w_reads_dy(run); }

 private:
  struct Keys {
    Tensor k, v;  // [K,N/cp,A+R]
  };
  void f(Run& run, MlaSaved& saved, BranchInput& input, const Tensor& y, const Tensor& residual) const override;
  Ticket b(Run& run, MlaSaved& saved, BranchInput& input, const Tensor& dy) const override;
  void w(Run& run, MlaSaved& saved, BranchInput& input, const Tensor& dy) const override;

  AttentionShape shape_of(const Run& run) const;
  void take_saved(Run& run, MlaSaved& saved, const Tensor& x) const;
  void take_up(Run& run, MlaSaved& saved, std::int64_t tokens) const;
  void project_down(Run& run, MlaSaved& saved, BranchInput& input) const;
  void project_up(Run& run, MlaSaved& saved, BranchInput& input) const;
  Keys expand(Run& run, const MlaSaved& saved) const;
  Keys join_cache(Run& run, const Keys& keys) const;
  void attend(Run& run, const MlaSaved& saved) const;
  void attend_back(Run& run, const MlaSaved& saved, const Tensor& dout, const Tensor& dq, const Keys& grads) const;
  void heads_back(Run& run, const MlaSaved& saved, const Tensor& dout) const;
  void rotary_back(Run& run, const MlaSaved& saved, const Tensor& of_these_heads) const;
  void latents_back(Run& run, const MlaSaved& saved, const Tensor& dx) const;
  Tensor padded(Run& run, const Tensor& values, std::string_view tag) const;

  bool pads() const { return spec_.values < spec_.head(); }
  Tensor heads_of(const Tensor& rows) const { return rows.split_last(spec_.heads, rows.dim(1) / spec_.heads); }
  // Ulysses: number of heads on this rank in attention, and a view of these in a tensor of all rows.
  std::int64_t ulysses_heads(const Run& run) const { return spec_.heads / cp_.of(run).head_ranks(); }
  Tensor split_ulysses_heads(const Run& run, const Tensor& all) const {
    return all.split_last(ulysses_heads(run), all.dim(1) / ulysses_heads(run));
  }
  // Columns of what down makes.
  Tensor q_part(const Tensor& down) const { return down.slice(1, 0, spec_.q_lora); }
  Tensor kv_part(const Tensor& down) const { return down.slice(1, spec_.q_lora, spec_.q_lora + spec_.kv_lora); }
  Tensor rotary_part(const Tensor& down) const { return down.slice(1, down.dim(1) - spec_.rotary, down.dim(1)); }

  MlaSpec spec_;  // heads of this rank
  TensorParallel tp_;
  ContextParallel cp_;
  Linear down_;
  std::optional<Norm> q_norm_;
  Norm kv_norm_;
  Linear q_, kv_, out_;
  Rope rope_;
  RngKey dropout_key_;
};

}  // namespace tera
