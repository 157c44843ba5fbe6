#include "tools/cuda_on_cpu/product.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <vector>

namespace cuda_on_cpu {
namespace {

// A tile of the result is 16 x 4: two vectors high, so that its eight sums stay in registers.
using Vector = float __attribute__((vector_size(32)));
constexpr std::uint64_t lanes = 8, tile_rows = 2 * lanes, tile_columns = 4, k_piece = 64;

float read(const void* data, cudaDataType_t type, std::int64_t i) {
  switch (type) {
    case CUDA_R_16BF: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case CUDA_R_16F: return __half2float(static_cast<const __half*>(data)[i]);
    default: return static_cast<const float*>(data)[i];
  }
}

void write(void* data, cudaDataType_t type, std::int64_t i, float value) {
  switch (type) {
    case CUDA_R_16BF: static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value); break;
    case CUDA_R_16F: static_cast<__half*>(data)[i] = __float2half_rn(value); break;
    default: static_cast<float*>(data)[i] = value;
  }
}

// [outer, k] as [tiles, k, width] of floats; what is missing in the last tile is zero. `k_is_down` says that k counts
// the matrix's rows.
std::vector<float> pack(const void* data, const Matrix& matrix, bool k_is_down, std::uint64_t width) {
  const std::uint64_t outer = k_is_down ? matrix.columns : matrix.rows, k = k_is_down ? matrix.rows : matrix.columns;
  std::vector<float> packed((outer + width - 1) / width * k * width);
  for (std::uint64_t column = 0; column < matrix.columns; ++column)
    for (std::uint64_t row = 0; row < matrix.rows; ++row) {
      const std::uint64_t o = k_is_down ? column : row, x = k_is_down ? row : column;
      packed[(o / width * k + x) * width + o % width] =
          read(data, matrix.type, static_cast<std::int64_t>(column) * matrix.stride + static_cast<std::int64_t>(row));
    }
  return packed;
}

struct Tile {
  double sums[tile_columns][tile_rows];
};

void add_piece(const float* left, const float* right, std::uint64_t count, Tile& tile) {
  Vector sums[tile_columns][2] = {};
  for (std::uint64_t x = 0; x < count; ++x) {
    Vector upper, lower;
    __builtin_memcpy(&upper, left + x * tile_rows, sizeof upper);
    __builtin_memcpy(&lower, left + x * tile_rows + lanes, sizeof lower);
    for (std::uint64_t j = 0; j < tile_columns; ++j) {
      sums[j][0] += upper * right[x * tile_columns + j];
      sums[j][1] += lower * right[x * tile_columns + j];
    }
  }
  for (std::uint64_t j = 0; j < tile_columns; ++j)
    for (std::uint64_t i = 0; i < tile_rows; ++i) tile.sums[j][i] += static_cast<double>(sums[j][i / lanes][i % lanes]);
}

void store(const Gemm& gemm, const Tile& tile, std::uint64_t first_row, std::uint64_t first_column) {
  const std::uint64_t rows = std::min(tile_rows, gemm.out.rows - first_row);
  const std::uint64_t columns = std::min(tile_columns, gemm.out.columns - first_column);
  for (std::uint64_t j = 0; j < columns; ++j)
    for (std::uint64_t i = 0; i < rows; ++i) {
      const auto row = static_cast<std::int64_t>(first_row + i), column = static_cast<std::int64_t>(first_column + j);
      double value = gemm.alpha * tile.sums[j][i];
      if (gemm.beta != 0) {
        const std::int64_t index = column * gemm.added.stride + row;
        value += static_cast<double>(gemm.beta) * read(gemm.added_data, gemm.added.type, index);
      }
      if (gemm.bias_data) value += read(gemm.bias_data, gemm.bias_type, row);
      write(gemm.out_data, gemm.out.type, column * gemm.out.stride + row, static_cast<float>(value));
    }
}

}  // namespace

std::size_t bytes_of(cudaDataType_t type) {
  return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 0;
}

std::uint64_t rows_of_a(const Gemm& gemm) { return gemm.transpose_a ? gemm.a.columns : gemm.a.rows; }
std::uint64_t columns_of_a(const Gemm& gemm) { return gemm.transpose_a ? gemm.a.rows : gemm.a.columns; }
std::uint64_t rows_of_b(const Gemm& gemm) { return gemm.transpose_b ? gemm.b.columns : gemm.b.rows; }
std::uint64_t columns_of_b(const Gemm& gemm) { return gemm.transpose_b ? gemm.b.rows : gemm.b.columns; }

void multiply(const Gemm& gemm) {
  const std::vector<float> left = pack(gemm.a_data, gemm.a, gemm.transpose_a, tile_rows);
  const std::vector<float> right = pack(gemm.b_data, gemm.b, !gemm.transpose_b, tile_columns);
  const std::uint64_t k = columns_of_a(gemm);
  for (std::uint64_t column = 0; column < gemm.out.columns; column += tile_columns)
    for (std::uint64_t row = 0; row < gemm.out.rows; row += tile_rows) {
      Tile tile = {};
      for (std::uint64_t x = 0; x < k; x += k_piece)
        add_piece(left.data() + row * k + x * tile_rows, right.data() + column * k + x * tile_columns,
                  std::min(k_piece, k - x), tile);
      store(gemm, tile, row, column);
    }
}

}  // namespace cuda_on_cpu
