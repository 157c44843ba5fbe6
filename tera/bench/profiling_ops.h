#pragma once
// A decorator of Ops that times every call of another backend, by kind of work and by the block that made it.

#include <memory>
#include <string>
#include <vector>

#include "tera/bench/profile.h"
#include "tera/comm/timed_calls.h"
#include "tera/ops/ops.h"

namespace tera {

class ProfilingOps final : public Ops {
 public:
  explicit ProfilingOps(std::unique_ptr<Ops> inner);

  // Calls are timed between start() and finish(); communication too, if `ranks` can time it.
  void start(CallTimer* ranks = nullptr);
  Profile finish();
  Ops& inner() { return *inner_; }

  Ticket record() override { return inner_->record(); }
  void wait(Ticket ticket) override { inner_->wait(ticket); }
  using Ops::finish;
  void finish(std::uint64_t id) override { inner_->finish(id); }
  double milliseconds(Ticket from, Ticket to) override { return inner_->milliseconds(from, to); }
  void reserve_tickets(std::size_t count) override { inner_->reserve_tickets(count); }
  const OpsTraits& traits() const override { return inner_->traits(); }
  bool fuses(const GemmActivationArgs& args) const override { return inner_->fuses(args); }
  bool fuses(const GemmActivationBackArgs& args) const override { return inner_->fuses(args); }
  void bind_workspace(std::span<std::byte> workspace) override { inner_->bind_workspace(workspace); }
  void prepare(const PlannedCalls& calls, std::span<std::byte> spare) override { inner_->prepare(calls, spare); }
  std::string remarks() const override { return inner_->remarks(); }
  void begin_range(const char* name) override;
  void end_range() override;

 private:
  void do_gemm(const GemmArgs& args) override;
  void do_gemm_activation(const GemmActivationArgs& args) override;
  void do_gemm_activation_back(const GemmActivationBackArgs& args) override;
  void do_column_sum(const ColumnSumArgs& args) override;
  void do_norm(const NormArgs& args) override;
  void do_norm_back(const NormBackArgs& args) override;
  void do_rope(const RopeArgs& args) override;
  void do_latent_heads(const LatentHeadsArgs& args) override;
  void do_latent_heads_back(const LatentHeadsBackArgs& args) override;
  void do_attention(const AttentionArgs& args) override;
  void do_attention_back(const AttentionBackArgs& args) override;
  void do_merge_attention(const MergeAttentionArgs& args) override;
  void do_activation(const ActivationArgs& args) override;
  void do_activation_back(const ActivationBackArgs& args) override;
  void do_dropout(const DropoutArgs& args) override;
  void do_group_rows(const GroupRowsArgs& args) override;
  void do_permute(const PermuteArgs& args) override;
  void do_unpermute(const UnpermuteArgs& args) override;
  void do_grouped_gemm(const GroupedGemmArgs& args) override;
  void do_grouped_weight_gradient(const GroupedWeightGradientArgs& args) override;
  void do_embedding(const EmbeddingArgs& args) override;
  void do_embedding_back(const EmbeddingBackArgs& args) override;
  void do_cross_entropy(const CrossEntropyArgs& args) override;
  void do_cross_entropy_stats(const CrossEntropyStatsArgs& args) override;
  void do_route(const RouteArgs& args) override;
  void do_route_back(const RouteBackArgs& args) override;
  void do_balance_loss(const BalanceLossArgs& args) override;
  void do_expert_bias(const ExpertBiasArgs& args) override;
  void do_sum(const SumArgs& args) override;
  void do_sum_squares(const SumSquaresArgs& args) override;
  void do_clip(const ClipArgs& args) override;
  void do_scale_loss(const ScaleLossArgs& args) override;
  void do_count_step(const CountStepArgs& args) override;
  void do_adam(const AdamArgs& args) override;
  void do_sgd(const SgdArgs& args) override;
  void do_copy(const CopyArgs& args) override;
  void do_fill(const FillArgs& args) override;
  void do_normal(const NormalArgs& args) override;
  void do_combine(const CombineArgs& args) override;
  void do_from_host(std::span<const std::byte> host, const Tensor& tensor) override;
  void do_to_host(const Tensor& tensor, std::span<std::byte> host) override;
  void do_to_host_later(const Tensor& tensor, std::span<std::byte> host) override;
  CopyPoints do_to_host_overlapped(const HostCopyArgs& args) override;
  CopyPoints do_from_host_overlapped(const HostCopyArgs& args) override;

  struct Call {
    WorkKind kind;
    const char* block;
    Ticket begin, end;
  };
  template <class Work>
  void timed(WorkKind kind, const Work& work);
  CopyPoints noted(const CopyPoints& copy, std::vector<CopyPoints>& async);
  Profile::Span span(Ticket begin, Ticket end);
  const char* block() const { return ranges_.empty() ? "other" : ranges_.back(); }

  std::unique_ptr<Ops> inner_;
  bool on_ = false;
  Ticket first_;
  CallTimer* ranks_ = nullptr;
  std::vector<TimedCall> between_ranks_;
  std::vector<Call> calls_;
  std::vector<CopyPoints> to_host_, from_host_;  // on queues of their own
  std::vector<const char*> ranges_;
};

}  // namespace tera
