#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tera::cuda::kernels {

inline constexpr int max_groups = 1024;

// Sorts the router's choices by expert, in their order; tera/ops/expert_rows.h defines the tensors.
struct GroupRows {
  const std::int32_t* experts;  // [choices]
  const float* weights;         // [choices], may be null
  std::int32_t* offsets;        // [groups+1]
  std::int32_t* sources;        // [rows]
  std::int32_t* places;         // [choices]
  std::int32_t* overflow;       // [1], may be null
  std::int32_t* counts;         // [blocks,groups], workspace
  std::int32_t* starts;         // [groups+1], workspace, with a capacity
  std::int32_t* order;          // [choices], workspace, with a capacity
  std::int64_t choices, rows, first_expert, capacity;
  int groups, blocks;
};
cudaError_t launch_group_rows(const GroupRows& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
