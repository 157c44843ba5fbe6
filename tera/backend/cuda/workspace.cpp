#include "tera/backend/cuda/workspace.h"

#include <algorithm>

#include "tera/backend/cuda/runtime/make_cuda.h"

namespace tera::cuda {

std::unique_ptr<WorkspaceRules> make_cuda_workspace_rules(bool deterministic) {
  return std::make_unique<CudaWorkspaceRules>(deterministic);
}

// Enough blocks to fill a large GPU twice, few enough that adding their sums up costs little. The numbers depend on the
// work alone, never on the GPU, so that sums come out the same everywhere.
PartialSums partial_sums(std::int64_t rows) {
  constexpr std::int64_t max_blocks = 264, min_rows = 4;
  const std::int64_t rows_per_block = std::max(min_rows, (rows + max_blocks - 1) / max_blocks);
  return {.blocks = (rows + rows_per_block - 1) / rows_per_block, .rows_per_block = rows_per_block};
}

std::int64_t scalar_sum_blocks(std::int64_t elements) {
  constexpr std::int64_t max_blocks = 528, elements_per_block = 8192;
  return std::clamp<std::int64_t>((elements + elements_per_block - 1) / elements_per_block, 1, max_blocks);
}

std::int64_t norm_vectors(const Tensor& x) { return x.dim(0) * (x.shape.rank == 3 ? x.dim(1) : 1); }

std::size_t norm_back_bytes(const NormBackArgs& args) {
  const std::int64_t gradients = (args.dweight ? 1 : 0) + (args.dbias ? 1 : 0);
  const std::int64_t sums = partial_sums(norm_vectors(args.x)).blocks * args.x.shape.last();
  return static_cast<std::size_t>(gradients * sums) * sizeof(float);
}

std::int64_t group_rows_blocks(std::int64_t choices) {
  constexpr std::int64_t max_blocks = 128, choices_per_block = 2048;
  return std::clamp<std::int64_t>((choices + choices_per_block - 1) / choices_per_block, 1, max_blocks);
}

std::size_t group_rows_bytes(const GroupRowsArgs& args) {
  const std::int64_t counts = group_rows_blocks(args.choices()) * args.groups();
  const std::int64_t lists = args.capacity > 0 ? args.groups() + 1 + args.choices() : 0;
  return static_cast<std::size_t>(counts + lists) * sizeof(std::int32_t);
}

std::size_t embedding_back_bytes(std::int64_t tokens) {
  return 2 * static_cast<std::size_t>(tokens) * sizeof(std::uint64_t);
}

std::size_t CudaWorkspaceRules::workspace(const NormBackArgs& args) const { return norm_back_bytes(args); }

std::size_t CudaWorkspaceRules::workspace(const GroupRowsArgs& args) const { return group_rows_bytes(args); }

std::size_t CudaWorkspaceRules::workspace(const EmbeddingBackArgs& args) const {
  return embedding_back_bytes(args.ids.dim(0));
}

std::size_t CudaWorkspaceRules::workspace(const GemmArgs& /*args*/) const { return gemm_workspace_bytes; }

// The kernel's blocks are 256 columns wide: eight of them for each multiprocessor of a large GPU, which holds that many
// at once. Few rows make fewer, so that each has some to add.
std::int64_t column_sum_blocks(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t max_blocks = 264, min_rows = 16, all_blocks = 1056, columns_per_block = 256;
  const std::int64_t across = std::max<std::int64_t>(1, (width + columns_per_block - 1) / columns_per_block);
  const std::int64_t wanted = std::clamp<std::int64_t>(all_blocks / across, 1, max_blocks);
  return std::min(wanted, (rows + min_rows - 1) / min_rows);
}

std::size_t column_sum_bytes(std::int64_t rows, std::int64_t width) {
  return static_cast<std::size_t>(column_sum_blocks(rows, width) * width) * sizeof(float);
}

std::size_t scalar_sum_bytes(std::int64_t elements) {
  const std::int64_t blocks = scalar_sum_blocks(elements);
  return blocks == 1 ? 0 : static_cast<std::size_t>(blocks) * sizeof(double);
}

std::size_t CudaWorkspaceRules::workspace(const ColumnSumArgs& args) const {
  return column_sum_bytes(args.x.dim(0), args.x.dim(1));
}

// Enough blocks to fill a large GPU several times with few rows for each of a block's warps.
PartBlocks route_blocks(const RouteArgs& args) {
  constexpr std::int64_t max_blocks = 528, min_rows = 16;
  const std::int64_t rows = args.logits.dim(0);
  return {args.parts(), std::max(min_rows, (rows + max_blocks - 1) / max_blocks)};
}

std::size_t route_bytes(const RouteArgs& args) {
  if (!args.sums()) return 0;
  return static_cast<std::size_t>(route_blocks(args).count() * (2 * args.logits.dim(1) + 1)) * sizeof(float);
}

std::size_t CudaWorkspaceRules::workspace(const RouteArgs& args) const { return route_bytes(args); }

std::size_t CudaWorkspaceRules::workspace(const SumArgs& args) const { return scalar_sum_bytes(count(args.x.shape)); }

std::size_t CudaWorkspaceRules::workspace(const SumSquaresArgs& args) const {
  return scalar_sum_bytes(count(args.x.shape));
}

}  // namespace tera::cuda
