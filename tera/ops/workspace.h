#pragma once
// The workspace that a backend needs for a call, by formula, so that it is part of the memory plan. One call runs at a
// time, so the workspace of a queue is the largest of these.

#include "tera/ops/ops.h"

namespace tera {

class WorkspaceRules {
 public:
  virtual ~WorkspaceRules() = default;
  virtual const OpsTraits& traits() const = 0;
  virtual std::size_t gemm(const GemmArgs&) const { return 0; }
  virtual std::size_t column_sum(const ColumnSumArgs&) const { return 0; }
  virtual std::size_t norm_back(const NormBackArgs&) const { return 0; }
  virtual std::size_t attention(const AttentionArgs&) const { return 0; }
  virtual std::size_t attention_back(const AttentionBackArgs&) const { return 0; }
  virtual std::size_t group_rows(const GroupRowsArgs&) const { return 0; }
  virtual std::size_t grouped_gemm(const GroupedGemmArgs&) const { return 0; }
  virtual std::size_t grouped_weight_gradient(const GroupedWeightGradientArgs&) const { return 0; }
  virtual std::size_t embedding_back(const EmbeddingBackArgs&) const { return 0; }
  virtual std::size_t route(const RouteArgs&) const { return 0; }
  virtual std::size_t sum(const SumArgs&) const { return 0; }
  virtual std::size_t sum_squares(const SumSquaresArgs&) const { return 0; }
};

}  // namespace tera
