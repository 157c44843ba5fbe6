// The log-sum-exp merge of partial attention results (ring attention). A warp merges a row of a head: the weights of
// the two parts are the same for all its channels.

#include <cmath>

#include "tera/backend/cuda/kernels/attention/attention.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int block_warps = 8;

template <class T>
__global__ void __launch_bounds__(block_warps * 32) merge_kernel(MergeAttentionParams p) {
  const std::int64_t index = std::int64_t{blockIdx.x} * block_warps + threadIdx.x / 32;
  if (index >= p.rows * p.heads) return;
  const std::int64_t row = index / p.heads;
  const int head = static_cast<int>(index % p.heads), lane = static_cast<int>(threadIdx.x) % 32;
  float* const lse = p.lse + head * p.lse_stride + row;
  const float a = *lse, b = p.part_lse[head * p.part_lse_stride + row];
  if (b == -INFINITY) return;  // all lanes of the warp
  const float maximum = fmaxf(a, b), both = maximum + logf(expf(a - maximum) + expf(b - maximum));
  const float before = expf(a - both), added = expf(b - both);
  float* const out = static_cast<float*>(p.out.data) + row * p.out.stride + std::int64_t{head} * p.head_size;
  const T* const part = static_cast<const T*>(p.part.data) + row * p.part.stride + std::int64_t{head} * p.head_size;
  for (int d = lane; d < p.head_size; d += 32) out[d] = out[d] * before + to_float(part[d]) * added;
  __syncwarp();  // every lane has read the old one
  if (lane == 0) *lse = both;
}

}  // namespace

cudaError_t launch_merge_attention(const MergeAttentionParams& params, cudaStream_t stream) {
  const std::int64_t blocks = (params.rows * params.heads + block_warps - 1) / block_warps;
  if (blocks == 0) return cudaSuccess;
  with_type(params.scalar, [&](auto zero) {
    merge_kernel<decltype(zero)><<<static_cast<unsigned>(blocks), block_warps * 32, 0, stream>>>(params);
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
