#pragma once
#include "tera/ops/workspace.h"

namespace tera::cpu {

inline constexpr OpsTraits cpu_traits{.asynchronous = false, .logits_chunk = 1LL << 24};

// The formulas themselves stand beside the code that uses the memory: gemm.cpp, norm.cpp, attention.cpp, reduce.cpp,
// expert_rows.cpp, route.cpp.
class CpuWorkspaceRules final : public WorkspaceRules {
 public:
  explicit CpuWorkspaceRules(int threads) : threads_(threads) {}
  using WorkspaceRules::workspace;
  const OpsTraits& traits() const override { return cpu_traits; }
  std::size_t workspace(const GemmArgs& args) const override;
  std::size_t workspace(const ColumnSumArgs& args) const override;
  std::size_t workspace(const NormBackArgs& args) const override;
  std::size_t workspace(const AttentionArgs& args) const override;
  std::size_t workspace(const AttentionBackArgs& args) const override;
  std::size_t workspace(const GroupRowsArgs& args) const override;
  std::size_t workspace(const GroupedGemmArgs& args) const override;
  std::size_t workspace(const GroupedWeightGradientArgs& args) const override;
  std::size_t workspace(const RouteArgs& args) const override;
  std::size_t workspace(const SumArgs& args) const override;
  std::size_t workspace(const SumSquaresArgs& args) const override;

 private:
  int threads_;
};

}  // namespace tera::cpu
