#pragma once
#include "tera/ops/workspace.h"

namespace tera::cpu {

inline constexpr OpsTraits cpu_traits{.asynchronous = false, .logits_chunk = 1LL << 24};

// The formulas themselves stand beside the code that uses the memory: gemm.cpp, norm.cpp, attention.cpp, reduce.cpp,
// expert_rows.cpp, route.cpp.
class CpuWorkspaceRules final : public WorkspaceRules {
 public:
  explicit CpuWorkspaceRules(int threads) : threads_(threads) {}
  const OpsTraits& traits() const override { return cpu_traits; }
  std::size_t gemm(const GemmArgs& args) const override;
  std::size_t column_sum(const ColumnSumArgs& args) const override;
  std::size_t norm_back(const NormBackArgs& args) const override;
  std::size_t attention(const AttentionArgs& args) const override;
  std::size_t attention_back(const AttentionBackArgs& args) const override;
  std::size_t group_rows(const GroupRowsArgs& args) const override;
  std::size_t grouped_gemm(const GroupedGemmArgs& args) const override;
  std::size_t grouped_weight_gradient(const GroupedWeightGradientArgs& args) const override;
  std::size_t route(const RouteArgs& args) const override;
  std::size_t sum(const SumArgs& args) const override;
  std::size_t sum_squares(const SumSquaresArgs& args) const override;

 private:
  int threads_;
};

}  // namespace tera::cpu
