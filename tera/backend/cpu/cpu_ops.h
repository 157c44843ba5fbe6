#pragma once
// Ops on the CPU: tiles of fixed size, executed by the rank's thread pool. One file per family implements the members.

#include "tera/backend/cpu/cpu_isa.h"
#include "tera/backend/cpu/thread_pool.h"
#include "tera/ops/ops.h"

namespace tera::cpu {

class CpuOps : public Ops {
 public:
  CpuOps(int threads, Isa isa);

  ThreadPool& pool() { return pool_; }
  Isa isa() const { return isa_; }
  // Calls are done when they return: a ticket is the time of record(), in nanoseconds.
  Ticket record() override;
  using Ops::finish;
  void finish(std::uint64_t) override {}
  double milliseconds(Ticket from, Ticket to) override { return static_cast<double>(to.id - from.id) * 1e-6; }
  const OpsTraits& traits() const override;
  void bind_workspace(std::span<std::byte> workspace) override { workspace_ = workspace; }

 private:
  void do_gemm(const GemmArgs& args) override;             // gemm.cpp
  void do_column_sum(const ColumnSumArgs& args) override;  // reduce.cpp
  void do_norm(const NormArgs& args) override;             // norm.cpp
  void do_norm_back(const NormBackArgs& args) override;
  void do_rope(const RopeArgs& args) override;                 // rope.cpp
  void do_latent_heads(const LatentHeadsArgs& args) override;  // latent_heads.cpp
  void do_latent_heads_back(const LatentHeadsBackArgs& args) override;
  void do_attention(const AttentionArgs& args) override;  // attention.cpp
  void do_attention_back(const AttentionBackArgs& args) override;
  void do_merge_attention(const MergeAttentionArgs& args) override;
  void do_activation(const ActivationArgs& args) override;  // pointwise.cpp
  void do_activation_back(const ActivationBackArgs& args) override;
  void do_dropout(const DropoutArgs& args) override;
  void do_group_rows(const GroupRowsArgs& args) override;  // expert_rows.cpp
  void do_permute(const PermuteArgs& args) override;
  void do_unpermute(const UnpermuteArgs& args) override;
  void do_grouped_gemm(const GroupedGemmArgs& args) override;  // gemm.cpp
  void do_grouped_weight_gradient(const GroupedWeightGradientArgs& args) override;
  void do_embedding(const EmbeddingArgs& args) override;  // embedding.cpp
  void do_embedding_back(const EmbeddingBackArgs& args) override;
  void do_cross_entropy(const CrossEntropyArgs& args) override;  // loss.cpp
  void do_cross_entropy_stats(const CrossEntropyStatsArgs& args) override;
  void do_route(const RouteArgs& args) override;  // route.cpp
  void do_route_back(const RouteBackArgs& args) override;
  void do_balance_loss(const BalanceLossArgs& args) override;
  void do_expert_bias(const ExpertBiasArgs& args) override;
  void do_sum(const SumArgs& args) override;  // reduce.cpp
  void do_sum_squares(const SumSquaresArgs& args) override;
  void do_clip(const ClipArgs& args) override;  // optim.cpp
  void do_scale_loss(const ScaleLossArgs& args) override;
  void do_count_step(const CountStepArgs& args) override;
  void do_adam(const AdamArgs& args) override;
  void do_sgd(const SgdArgs& args) override;
  void do_copy(const CopyArgs& args) override;  // copy.cpp
  void do_fill(const FillArgs& args) override;
  void do_normal(const NormalArgs& args) override;    // random.cpp
  void do_combine(const CombineArgs& args) override;  // combine.cpp
  void do_from_host(std::span<const std::byte> host, const Tensor& tensor) override;
  void do_to_host(const Tensor& tensor, std::span<std::byte> host) override;

  // The first `bytes` of the workspace; throws when the plan reserved less.
  std::span<std::byte> workspace(std::size_t bytes) const;

  ThreadPool pool_;
  Isa isa_;
  std::span<std::byte> workspace_;
};

}  // namespace tera::cpu
