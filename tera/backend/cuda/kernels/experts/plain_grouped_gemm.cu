#include "tera/backend/cuda/kernels/experts/plain_grouped_gemm.cuh"

#include <limits>

namespace tera::cuda::kernels {
namespace {

// A block of 16 x 16 threads computes a tile of 64 x 64; a thread has rows ty, ty + 16, .. and columns tx, tx + 16, ..
// of it. Slices of the operands, 16 deep in K, pass through shared memory.
constexpr int tile = 64, depth = 16, side = 16, threads = side * side, each = tile / side;

std::int64_t tiles_of(std::int64_t size) { return (size + tile - 1) / tile; }

// An operand: element (i, k) is at data[i * stride + k * depth_stride], zero outside of size x depth_size.
template <class T>
struct Operand {
  const T* data;
  std::int64_t stride, depth_stride;
  std::int64_t size, depth_size;

  __device__ float at(std::int64_t i, std::int64_t k) const {
    return i < size && k < depth_size ? to_float(data[i * stride + k * depth_stride]) : 0.0f;
  }
};

// Columns are padded by one: threads that write a column fall on different banks.
using Slice = float[depth][tile + 1];

// Neighbouring threads read neighbouring elements, whichever way the operand lies.
template <class T>
__device__ void load_slice(const Operand<T>& from, std::int64_t first, std::int64_t k, Slice& slice) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool along_depth = from.depth_stride == 1;
#pragma unroll
  for (int u = 0; u < tile * depth / threads; ++u) {
    const int at = u * threads + thread;
    const int in_depth = along_depth ? at % depth : at / tile, in_tile = along_depth ? at / depth : at % tile;
    slice[in_depth][in_tile] = from.at(first + in_tile, k + in_depth);
  }
}

// sums[i][j] of rows row + ty + 16 i of a and rows column + tx + 16 j of b, over all of K.
template <class T>
__device__ void multiply(const Operand<T>& a, const Operand<T>& b, std::int64_t row, std::int64_t column,
                         float (&sums)[each][each]) {
  __shared__ Slice a_slice, b_slice;
  const int x = static_cast<int>(threadIdx.x) % side, y = static_cast<int>(threadIdx.x) / side;
  for (std::int64_t k = 0; k < a.depth_size; k += depth) {
    __syncthreads();
    load_slice(a, row, k, a_slice);
    load_slice(b, column, k, b_slice);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < depth; ++d) {
      float left[each], right[each];
#pragma unroll
      for (int i = 0; i < each; ++i) left[i] = a_slice[d][y + i * side];
#pragma unroll
      for (int j = 0; j < each; ++j) right[j] = b_slice[d][x + j * side];
#pragma unroll
      for (int i = 0; i < each; ++i)
#pragma unroll
        for (int j = 0; j < each; ++j) sums[i][j] += left[i] * right[j];
    }
  }
}

// body(row, column, sum) for this thread's part of a tile at (row, column), as far as it is inside rows x columns.
template <class Body>
__device__ void for_sums(const float (&sums)[each][each], std::int64_t row, std::int64_t rows, std::int64_t column,
                         std::int64_t columns, const Body& body) {
  const int x = static_cast<int>(threadIdx.x) % side, y = static_cast<int>(threadIdx.x) / side;
#pragma unroll
  for (int i = 0; i < each; ++i)
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const std::int64_t r = row + y + i * side, c = column + x + j * side;
      if (r < rows && c < columns) body(r, c, sums[i][j]);
    }
}

// Tiles of a group are numbered from floor(offsets[g] / tile) + g on: that reserves enough numbers for the group,
// whatever the sizes are, and needs no sum over the groups before. Some numbers belong to no tile.
std::int64_t row_tiles(std::int64_t rows, std::int64_t groups) { return rows / tile + groups; }
__device__ std::int64_t first_tile(const std::int32_t* offsets, std::int64_t g) { return offsets[g] / tile + g; }

// The last group whose tiles begin at or before this number.
__device__ std::int64_t group_of_tile(const std::int32_t* offsets, std::int64_t groups, std::int64_t number) {
  std::int64_t low = 0, high = groups;  // the group is in [low, high)
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    if (first_tile(offsets, middle) <= number)
      low = middle;
    else
      high = middle;
  }
  return low;
}

template <class In, class Out>
__global__ void __launch_bounds__(threads) grouped_gemm(PlainGroupedGemm args) {
  const std::int64_t column_tiles = (args.n + tile - 1) / tile, number = blockIdx.x / column_tiles;
  const std::int64_t g = group_of_tile(args.offsets, args.groups, number);
  const std::int64_t begin = args.offsets[g], rows = args.offsets[g + 1] - begin;
  const std::int64_t row = (number - first_tile(args.offsets, g)) * tile, column = blockIdx.x % column_tiles * tile;
  if (row < 0 || row >= rows) return;
  const Operand<In> a{static_cast<const In*>(args.a) + begin * args.k, args.k, 1, rows, args.k};
  const Operand<In> b{static_cast<const In*>(args.b) + g * args.k * args.n, args.trans_b ? args.k : 1,
                      args.trans_b ? 1 : args.n, args.n, args.k};
  float sums[each][each] = {};
  multiply(a, b, row, column, sums);
  Out* out = static_cast<Out*>(args.out) + begin * args.n;
  for_sums(sums, row, rows, column, args.n,
           [&](std::int64_t r, std::int64_t c, float sum) { out[r * args.n + c] = from_float<Out>(sum); });
}

template <class In>
__global__ void __launch_bounds__(threads) grouped_weight_gradient(PlainGroupedWeightGradient args) {
  const std::int64_t column_tiles = (args.n + tile - 1) / tile,
                     matrix_tiles = (args.m + tile - 1) / tile * column_tiles;
  const std::int64_t g = blockIdx.x / matrix_tiles, in_matrix = blockIdx.x % matrix_tiles;
  const std::int64_t row = in_matrix / column_tiles * tile, column = in_matrix % column_tiles * tile;
  const std::int64_t begin = args.offsets[g], rows = args.offsets[g + 1] - begin;
  if (rows <= 0 && args.accumulate) return;
  const Operand<In> a{static_cast<const In*>(args.a) + begin * args.m, 1, args.m, args.m, rows};
  const Operand<In> b{static_cast<const In*>(args.b) + begin * args.n, 1, args.n, args.n, rows};
  float sums[each][each] = {};
  multiply(a, b, row, column, sums);
  float* out = args.out + g * args.m * args.n;
  for_sums(sums, row, args.m, column, args.n, [&](std::int64_t r, std::int64_t c, float sum) {
    float& to = out[r * args.n + c];
    to = args.accumulate ? to + sum : sum;
  });
}

bool is_valid_grid(std::int64_t blocks) { return blocks <= std::numeric_limits<int>::max(); }

}  // namespace

cudaError_t launch_plain_grouped_gemm(const PlainGroupedGemm& args, cudaStream_t stream) {
  if (args.rows == 0 || args.n == 0) return cudaSuccess;
  const std::int64_t blocks = row_tiles(args.rows, args.groups) * tiles_of(args.n);
  if (!is_valid_grid(blocks)) return cudaErrorInvalidConfiguration;
  with_type(args.in_type, [&](auto in) {
    using In = decltype(in);
    const auto kernel = args.out_type == Scalar::f32 ? grouped_gemm<In, float> : grouped_gemm<In, In>;
    kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

cudaError_t launch_plain_grouped_weight_gradient(const PlainGroupedWeightGradient& args, cudaStream_t stream) {
  if (args.m == 0 || args.n == 0) return cudaSuccess;
  const std::int64_t blocks = tiles_of(args.m) * tiles_of(args.n) * args.groups;
  if (!is_valid_grid(blocks)) return cudaErrorInvalidConfiguration;
  with_type(args.in_type, [&](auto in) {
    grouped_weight_gradient<decltype(in)><<<static_cast<unsigned>(blocks), threads, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
