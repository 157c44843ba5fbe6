#pragma once
#include "tera/ops/all_ops.h"
#include "tera/ops/workspace.h"

namespace tera::cuda {

inline constexpr OpsTraits cuda_traits{.asynchronous = true, .logits_chunk = 1LL << 30};

// cuBLASLt's workspace: NVIDIA's recommendation for Hopper.
inline constexpr std::size_t gemm_workspace_bytes = std::size_t{32} << 20;

// Formulas only, no CUDA: any machine can plan for a GPU. Each op's stands in workspace.cpp, beside the others, because
// the files that use the memory are not compiled everywhere; those call the same functions.
class CudaWorkspaceRules final : public WorkspaceRules {
 public:
  explicit CudaWorkspaceRules(bool deterministic = true) : deterministic_(deterministic) {}
  using WorkspaceRules::workspace;
  const OpsTraits& traits() const override { return cuda_traits; }
  std::size_t workspace(const GemmArgs& args) const override;
  std::size_t workspace(const ColumnSumArgs& args) const override;
  std::size_t workspace(const NormBackArgs& args) const override;
  std::size_t workspace(const AttentionArgs& args) const override;  // attention_workspace.cpp
  std::size_t workspace(const AttentionBackArgs& args) const override;
  std::size_t workspace(const GroupRowsArgs& args) const override;
  std::size_t workspace(const EmbeddingBackArgs& args) const override;
  std::size_t workspace(const RouteArgs& args) const override;
  std::size_t workspace(const SumArgs& args) const override;
  std::size_t workspace(const SumSquaresArgs& args) const override;

 private:
  bool deterministic_;
};

// Blocks of rows whose partial sums norm_back adds up, in order.
struct PartialSums {
  std::int64_t blocks = 0, rows_per_block = 0;
};
PartialSums partial_sums(std::int64_t rows);
// Vectors that norm_back sees in x, and the partial sums of dweight, then of dbias: f32 [blocks, H] each.
std::int64_t norm_vectors(const Tensor& x);
std::size_t norm_back_bytes(const NormBackArgs& args);
// Blocks that group_rows cuts the choices into. Its workspace: a histogram of each block's choices by expert;
// with a capacity also where experts begin, and their choices: i32 [blocks,G], [G+1], [T*K].
std::int64_t group_rows_blocks(std::int64_t choices);
std::size_t group_rows_bytes(const GroupRowsArgs& args);
// Two buffers of sorted (id, row) keys, 64 bits each.
std::size_t embedding_back_bytes(std::int64_t tokens);
// Blocks whose partial sums sum and sum_squares add up, in order.
std::int64_t scalar_sum_blocks(std::int64_t elements);
// Partial sums of rows that column_sum adds up, in order, and their f32 [blocks, width].
std::int64_t column_sum_blocks(std::int64_t rows, std::int64_t width);
std::size_t column_sum_bytes(std::int64_t rows, std::int64_t width);
std::size_t scalar_sum_bytes(std::int64_t elements);
// Blocks of rows whose sums route adds up, in order; of each the scores' f32 [E], the counts' i32 [E] and a f32 of z.
PartBlocks route_blocks(const RouteArgs& args);
std::size_t route_bytes(const RouteArgs& args);

}  // namespace tera::cuda
