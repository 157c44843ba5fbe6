#pragma once
// The backend of a dry run: it computes nothing and counts what a real backend would need. A step runs on it before
// memory is allocated. Arguments are checked as in every backend; no tensor's memory is touched.

#include <cstddef>
#include <cstdint>

#include "tera/ops/ops.h"
#include "tera/ops/workspace.h"

namespace tera {

class PlanOps final : public Ops {
 public:
  explicit PlanOps(const WorkspaceRules& rules) : rules_(rules) {}

  std::size_t workspace_peak() const { return workspace_peak_; }  // the maximum over calls so far
  std::int64_t calls() const { return calls_; }
  // FLOPs of GEMMs and attention, two per multiply-add. Attention counts unmasked pairs within the window (half of a
  // causal square); its backward counts as two forwards, without the recomputation in kernels. Packed documents count
  // as one sequence, because their offsets are in device memory. For the same reason a grouped GEMM counts
  // expected_rows, or all.
  double flops() const { return flops_; }

  const PlannedCalls& planned_calls() const { return planned_calls_; }

  const OpsTraits& traits() const override { return rules_.traits(); }
  // Recorded as one call: the real backend decides.
  bool fuses(const GemmActivationArgs&) const override { return true; }
  bool fuses(const GemmActivationBackArgs&) const override { return true; }
  using Ops::finish;
  void finish(std::uint64_t) override {}
  Ticket record() override {
    ++records_;
    return {};
  }
  std::size_t records() const { return records_; }  // number of calls of record()
  void wait(Ticket) override {}
  double milliseconds(Ticket, Ticket) override { return 0; }
  void bind_workspace(std::span<std::byte>) override {}

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

  void note(std::size_t workspace, double flops);

  const WorkspaceRules& rules_;
  std::size_t workspace_peak_ = 0;
  std::int64_t calls_ = 0;
  std::size_t records_ = 0;
  double flops_ = 0;
  PlannedCalls planned_calls_;
};

}  // namespace tera
