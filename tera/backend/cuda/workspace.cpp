#include "tera/backend/cuda/workspace.h"

#include <algorithm>

#include "tera/backend/cuda/make_cuda.h"

namespace tera::cuda {

std::unique_ptr<WorkspaceRules> make_cuda_workspace_rules(bool deterministic) {
  return std::make_unique<CudaWorkspaceRules>(deterministic);
}

// Enough blocks to fill a large GPU twice, few enough that adding their sums up costs little. The numbers depend on the
// work alone, never on the GPU, so that sums come out the same everywhere.
PartialSums partial_sums(std::int64_t rows) {
  constexpr std::int64_t most_blocks = 264, fewest_rows = 4;
  const std::int64_t rows_per_block = std::max(fewest_rows, (rows + most_blocks - 1) / most_blocks);
  return {.blocks = (rows + rows_per_block - 1) / rows_per_block, .rows_per_block = rows_per_block};
}

std::int64_t scalar_sum_blocks(std::int64_t elements) {
  constexpr std::int64_t most_blocks = 528, elements_per_block = 8192;
  return std::clamp<std::int64_t>((elements + elements_per_block - 1) / elements_per_block, 1, most_blocks);
}

std::size_t CudaWorkspaceRules::gemm(const GemmArgs& /*args*/) const { return gemm_workspace_bytes; }

}  // namespace tera::cuda
