#include "tera/backend/cuda/kernels/plain_gemm.cuh"

#include <limits>

namespace tera::cuda::kernels {
namespace {

constexpr int tile = 16;

__device__ float element(const void* data, Scalar type, std::int64_t index) {
  switch (type) {
    case Scalar::bf16: return to_float(static_cast<const __nv_bfloat16*>(data)[index]);
    case Scalar::f16: return to_float(static_cast<const __half*>(data)[index]);
    default: return static_cast<const float*>(data)[index];
  }
}

// A block computes one tile of out; tiles of a and b pass through shared memory.
template <class In, class Out>
__global__ void plain_gemm(PlainGemm args) {
  __shared__ float a_tile[tile][tile + 1], b_tile[tile][tile + 1];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  // Tiles of a row of out; all tiles lie along x, the wide dimension of a grid.
  const std::int64_t tiles = (args.n + tile - 1) / tile;
  const std::int64_t row = blockIdx.x / tiles * tile + y, column = blockIdx.x % tiles * tile + x;
  const In *a = static_cast<const In*>(args.a), *b = static_cast<const In*>(args.b);
  float sum = 0;
  for (std::int64_t begin = 0; begin < args.k; begin += tile) {
    a_tile[y][x] = row < args.m && begin + x < args.k ? to_float(a[row * args.a_row + (begin + x) * args.a_column]) : 0;
    b_tile[y][x] =
        column < args.n && begin + y < args.k ? to_float(b[(begin + y) * args.b_row + column * args.b_column]) : 0;
    __syncthreads();
    for (int i = 0; i < tile; ++i) sum += a_tile[y][i] * b_tile[i][x];
    __syncthreads();
  }
  if (row >= args.m || column >= args.n) return;
  Out& out = static_cast<Out*>(args.out)[row * args.out_stride + column];
  if (args.bias) sum += element(args.bias, args.bias_type, column);
  if (args.residual) sum += element(args.residual, args.residual_type, row * args.residual_stride + column);
  if (args.accumulate) sum += to_float(out);
  out = from_float<Out>(sum);
}

}  // namespace

cudaError_t launch_plain_gemm(const PlainGemm& args, cudaStream_t stream) {
  if (args.m == 0 || args.n == 0) return cudaSuccess;
  const std::int64_t blocks = (args.m + tile - 1) / tile * ((args.n + tile - 1) / tile);
  if (blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  const auto grid = static_cast<unsigned>(blocks);
  with_type(args.in_type, [&](auto in) {
    with_type(args.out_type,
              [&](auto out) { plain_gemm<decltype(in), decltype(out)><<<grid, dim3(tile, tile), 0, stream>>>(args); });
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
