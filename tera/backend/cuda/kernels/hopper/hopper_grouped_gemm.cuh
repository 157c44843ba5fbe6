#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

enum class GroupedForm : std::uint8_t {
  transposed,  // out[r] = a[r] b[g]^T for the rows r of group g: a [R,K], b [G,N,K], out [R,N]
  plain,       // out[r] = a[r] b[g]: a [R,K], b [G,K,N], out [R,N]
  weights,     // out[g] (+)= a_g^T b_g, summed over the rows of group g: a [R,M], b [R,N], out f32 [G,M,N]
};

// Grouped GEMM (rows of experts, each group with a matrix of its own) by TMA and wgmma. All tensors are dense, sums
// fp32 and rounded once. Rows after the last group are neither read into a result nor written. The order of a sum
// depends on nothing but its group's size: no split-K, no atomics.
struct HopperGroupedGemm {
  GroupedForm form = GroupedForm::transposed;
  const void *a = nullptr, *b = nullptr;
  void* out = nullptr;
  const std::int32_t* offsets = nullptr;  // [G+1], on the device: rows offsets[g] .. offsets[g+1] are group g's
  std::int64_t rows = 0, groups = 0;      // R, G
  std::int64_t n = 0, k = 0;              // k: not for weights
  std::int64_t m = 0;                     // for weights
  bool accumulate = true;                 // for weights: else out is not read, and zero where a group is empty
  Scalar in_type = Scalar::bf16, out_type = Scalar::bf16;  // out: as in, or f32
};

// Whether the GPU in use and the program have this kernel, and it supports the call: 16-bit operands that begin at
// multiples of 16 bytes, rows of multiples of 16 bytes, at most 512 groups.
bool hopper_grouped_gemm_supports(const HopperGroupedGemm& args);

cudaError_t launch_hopper_grouped_gemm(const HopperGroupedGemm& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
