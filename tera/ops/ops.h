#pragma once
// The backend interface: all work on tensors goes through it. Callers use the plain function; a backend implements the
// private do_ one, and can rely on the arguments having passed their check(). Backends: plan (a dry run, which counts
// and touches no memory), cpu, cuda.
//
// An Ops object is one queue, as a CUDA stream: work is done in the order of the calls, but a call may return before it
// is done (traits()).

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "tera/ops/attention.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/embedding.h"
#include "tera/ops/expert_rows.h"
#include "tera/ops/gemm.h"
#include "tera/ops/gemm_activation.h"
#include "tera/ops/grouped_gemm.h"
#include "tera/ops/latent_heads.h"
#include "tera/ops/loss.h"
#include "tera/ops/norm.h"
#include "tera/ops/optim.h"
#include "tera/ops/planned_calls.h"
#include "tera/ops/pointwise.h"
#include "tera/ops/random.h"
#include "tera/ops/recording.h"
#include "tera/ops/rope.h"
#include "tera/ops/route.h"
#include "tera/ops/ticket.h"
#include "tera/ops/traits.h"

namespace tera {

class Ops : public Timeline {
 public:
  // clang-format off
  void gemm(const GemmArgs& args)                      { args.check(); do_gemm(args); }
  void gemm_activation(const GemmActivationArgs& args);
  void gemm_activation_back(const GemmActivationBackArgs& args);
  void column_sum(const ColumnSumArgs& args)           { args.check(); do_column_sum(args); }
  void norm(const NormArgs& args)                      { args.check(); do_norm(args); }
  void norm_back(const NormBackArgs& args)             { args.check(); do_norm_back(args); }
  void rope(const RopeArgs& args)                      { args.check(); do_rope(args); }
  void latent_heads(const LatentHeadsArgs& args)       { args.check(); do_latent_heads(args); }
  void latent_heads_back(const LatentHeadsBackArgs& args) { args.check(); do_latent_heads_back(args); }
  void attention(const AttentionArgs& args)            { args.check(); do_attention(args); }
  void attention_back(const AttentionBackArgs& args)   { args.check(); do_attention_back(args); }
  void merge_attention(const MergeAttentionArgs& args) { args.check(); do_merge_attention(args); }
  void activation(const ActivationArgs& args)          { args.check(); do_activation(args); }
  void activation_back(const ActivationBackArgs& args) { args.check(); do_activation_back(args); }
  void dropout(const DropoutArgs& args)                { args.check(); do_dropout(args); }
  void group_rows(const GroupRowsArgs& args)           { args.check(); do_group_rows(args); }
  void permute(const PermuteArgs& args)                { args.check(); do_permute(args); }
  void unpermute(const UnpermuteArgs& args)            { args.check(); do_unpermute(args); }
  void grouped_gemm(const GroupedGemmArgs& args)       { args.check(); do_grouped_gemm(args); }
  void grouped_weight_gradient(const GroupedWeightGradientArgs& a)    { a.check(); do_grouped_weight_gradient(a); }
  void embedding(const EmbeddingArgs& args)            { args.check(); do_embedding(args); }
  void embedding_back(const EmbeddingBackArgs& args)   { args.check(); do_embedding_back(args); }
  void cross_entropy(const CrossEntropyArgs& args)     { args.check(); do_cross_entropy(args); }
  void cross_entropy_stats(const CrossEntropyStatsArgs& args) { args.check(); do_cross_entropy_stats(args); }
  void route(const RouteArgs& args)                   { args.check(); do_route(args); }
  void route_back(const RouteBackArgs& args)          { args.check(); do_route_back(args); }
  void balance_loss(const BalanceLossArgs& args)      { args.check(); do_balance_loss(args); }
  void expert_bias(const ExpertBiasArgs& args)        { args.check(); do_expert_bias(args); }
  void sum(const SumArgs& args)                        { args.check(); do_sum(args); }
  void sum_squares(const SumSquaresArgs& args)         { args.check(); do_sum_squares(args); }
  void clip(const ClipArgs& args)                      { args.check(); do_clip(args); }
  void scale_loss(const ScaleLossArgs& args)           { args.check(); do_scale_loss(args); }
  void count_step(const CountStepArgs& args)           { args.check(); do_count_step(args); }
  void adam(const AdamArgs& args)                      { args.check(); do_adam(args); }
  void sgd(const SgdArgs& args)                        { args.check(); do_sgd(args); }
  void copy(const CopyArgs& args)                      { args.check(); do_copy(args); }
  void fill(const FillArgs& args)                      { args.check(); do_fill(args); }
  void normal(const NormalArgs& args)                  { args.check(); do_normal(args); }
  void combine(const CombineArgs& args)                { args.check(); do_combine(args); }
  // clang-format on

  // Whether the backend runs this call as one fused kernel instead of two.
  virtual bool fuses(const GemmActivationArgs& /*args*/) const { return false; }
  virtual bool fuses(const GemmActivationBackArgs& /*args*/) const { return false; }

  // Synchronous copies between host memory and a dense tensor of this device: `host` may be reused after from_host, and
  // holds the bytes when to_host returns.
  void from_host(std::span<const std::byte> host, const Tensor& tensor);
  void to_host(const Tensor& tensor, std::span<std::byte> host);

  // An asynchronous copy on this queue: the bytes are in `host` when a later record() is finished. `host` comes from
  // Device::allocate_host and is not touched until then.
  void to_host_later(const Tensor& tensor, std::span<std::byte> host);

  // Copies that overlap with this queue, on a copy stream per direction where the device has them. Until the end that
  // is returned, neither side may be changed, nor the target be read.
  CopyPoints to_host_overlapped(const HostCopyArgs& args);
  CopyPoints from_host_overlapped(const HostCopyArgs& args);

  using Timeline::finish;
  virtual Ticket record() = 0;                              // a point after all calls so far, as a CUDA event
  virtual void wait(Ticket ticket);                         // this queue waits, and the host only where it must
  void finish(Ticket ticket);                               // the host waits; the ticket may be of any timeline
  virtual double milliseconds(Ticket from, Ticket to) = 0;  // between two finished tickets of this queue
  virtual void reserve_tickets(std::size_t /*count*/) {}    // so many latest tickets stay valid from now on

  virtual const OpsTraits& traits() const = 0;

  // The backend's workspace (packed panels, partial sums), as large as WorkspaceRules say in the plan.
  virtual void bind_workspace(std::span<std::byte> workspace) = 0;
  // Autotuning: selects the kernels of the planned calls, after bind_workspace and before the first of these calls;
  // `spare` is device memory for trials, overwritten.
  virtual void prepare(const PlannedCalls& /*calls*/, std::span<std::byte> /*spare*/) {}

  // CUDA graph capture: records the work of `calls` without doing it. Work that cannot be captured (a copy from host
  // memory, a wait of the host) makes the attempt fail; `calls` may then have ended early.
  virtual RecordingAttempt record_calls(const std::function<void()>& /*calls*/) {
    return {nullptr, "this device records nothing"};
  }

  // Remarks for the user about the selected kernels, a line each; empty: nothing unusual.
  virtual std::string remarks() const { return {}; }

  // Ranges that name the next calls in profiles, as those of NVTX; they nest. `name` lives as long as the program.
  virtual void begin_range(const char* /*name*/) {}
  virtual void end_range() {}

 private:
  virtual void do_gemm(const GemmArgs& args) = 0;
  virtual void do_gemm_activation(const GemmActivationArgs& args);  // only calls that it fuses
  virtual void do_gemm_activation_back(const GemmActivationBackArgs& args);
  virtual void do_column_sum(const ColumnSumArgs& args) = 0;
  virtual void do_norm(const NormArgs& args) = 0;
  virtual void do_norm_back(const NormBackArgs& args) = 0;
  virtual void do_rope(const RopeArgs& args) = 0;
  virtual void do_latent_heads(const LatentHeadsArgs& args) = 0;
  virtual void do_latent_heads_back(const LatentHeadsBackArgs& args) = 0;
  virtual void do_attention(const AttentionArgs& args) = 0;
  virtual void do_attention_back(const AttentionBackArgs& args) = 0;
  virtual void do_merge_attention(const MergeAttentionArgs& args) = 0;
  virtual void do_activation(const ActivationArgs& args) = 0;
  virtual void do_activation_back(const ActivationBackArgs& args) = 0;
  virtual void do_dropout(const DropoutArgs& args) = 0;
  virtual void do_group_rows(const GroupRowsArgs& args) = 0;
  virtual void do_permute(const PermuteArgs& args) = 0;
  virtual void do_unpermute(const UnpermuteArgs& args) = 0;
  virtual void do_grouped_gemm(const GroupedGemmArgs& args) = 0;
  virtual void do_grouped_weight_gradient(const GroupedWeightGradientArgs& args) = 0;
  virtual void do_embedding(const EmbeddingArgs& args) = 0;
  virtual void do_embedding_back(const EmbeddingBackArgs& args) = 0;
  virtual void do_cross_entropy(const CrossEntropyArgs& args) = 0;
  virtual void do_cross_entropy_stats(const CrossEntropyStatsArgs& args) = 0;
  virtual void do_route(const RouteArgs& args) = 0;
  virtual void do_route_back(const RouteBackArgs& args) = 0;
  virtual void do_balance_loss(const BalanceLossArgs& args) = 0;
  virtual void do_expert_bias(const ExpertBiasArgs& args) = 0;
  virtual void do_sum(const SumArgs& args) = 0;
  virtual void do_sum_squares(const SumSquaresArgs& args) = 0;
  virtual void do_clip(const ClipArgs& args) = 0;
  virtual void do_scale_loss(const ScaleLossArgs& args) = 0;
  virtual void do_count_step(const CountStepArgs& args) = 0;
  virtual void do_adam(const AdamArgs& args) = 0;
  virtual void do_sgd(const SgdArgs& args) = 0;
  virtual void do_copy(const CopyArgs& args) = 0;
  virtual void do_fill(const FillArgs& args) = 0;
  virtual void do_normal(const NormalArgs& args) = 0;
  virtual void do_combine(const CombineArgs& args) = 0;
  virtual void do_from_host(std::span<const std::byte> host, const Tensor& tensor) = 0;
  virtual void do_to_host(const Tensor& tensor, std::span<std::byte> host) = 0;
  virtual void do_to_host_later(const Tensor& tensor, std::span<std::byte> host) { do_to_host(tensor, host); }
  virtual CopyPoints do_to_host_overlapped(const HostCopyArgs& args);  // the default uses this queue
  virtual CopyPoints do_from_host_overlapped(const HostCopyArgs& args);
};

class RangeScope {
 public:
  RangeScope(Ops& ops, const char* name) : ops_(ops) { ops_.begin_range(name); }
  ~RangeScope() { ops_.end_range(); }
  RangeScope(const RangeScope&) = delete;
  RangeScope& operator=(const RangeScope&) = delete;

 private:
  Ops& ops_;
};

}  // namespace tera
