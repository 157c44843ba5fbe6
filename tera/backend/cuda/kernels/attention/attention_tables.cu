#include "tera/backend/cuda/kernels/attention/attention.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int threads = 256;

__global__ void permute(PermuteParams p) {
  const std::int64_t count = p.sizes[0] * p.sizes[1] * p.sizes[2];
  const std::int64_t index = std::int64_t{blockIdx.x} * threads + threadIdx.x;
  if (index >= count) return;
  const std::int64_t k = index % p.sizes[2], j = index / p.sizes[2] % p.sizes[1], i = index / p.sizes[2] / p.sizes[1];
  p.to[i * p.to_strides[0] + j * p.to_strides[1] + k * p.to_strides[2]] =
      p.from[i * p.from_strides[0] + j * p.from_strides[1] + k * p.from_strides[2]];
}

__global__ void document_tables(DocumentTableParams p) {
  const int j = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  if (j > p.documents) return;
  const std::int64_t offset = p.offsets[j];
#pragma unroll
  for (int i = 0; i < DocumentTableParams::max_operands; ++i)
    if (i < p.operands) p.begins[std::int64_t{i} * (p.documents + 1) + j] = offset * p.strides[i];
  if (j < p.documents) p.lengths[j] = p.offsets[j + 1] - p.offsets[j];
}

}  // namespace

cudaError_t launch_permute(const PermuteParams& params, cudaStream_t stream) {
  const std::int64_t count = params.sizes[0] * params.sizes[1] * params.sizes[2];
  if (count == 0) return cudaSuccess;
  permute<<<static_cast<unsigned>((count + threads - 1) / threads), threads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch_document_tables(const DocumentTableParams& params, cudaStream_t stream) {
  document_tables<<<static_cast<unsigned>(params.documents / threads + 1), threads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
