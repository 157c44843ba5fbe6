#pragma once
// The kernels of matrix products. gemm.cpp one folder up cuts a product into the blocks these work on.

#include <cstddef>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

enum class GemmStorage : unsigned char { f32, bf16, f16 };

// A matrix as it lies in memory: rows `stride` elements apart.
struct GemmMatrix {
  const void* data = nullptr;
  std::ptrdiff_t stride = 0;
  GemmStorage storage = GemmStorage::f32;
};

// Packs b [depth, columns] (transposed: stored [columns, depth]) into slivers for the tiles.
struct GemmPackArgs {
  GemmMatrix b;
  bool transposed = false;
  std::ptrdiff_t depth = 0, columns = 0;
  float* packed = nullptr;  // [slivers, depth, tile columns]
};

// One block of the output for one block of the depth: sums = a b (+ bias + residual), or sums += a b; then, where out
// is given, out = sums in its own storage.
struct GemmBlockArgs {
  GemmMatrix a;  // [rows, depth], or [depth, rows] where transposed
  bool transposed = false;
  const float* b = nullptr;  // packed
  std::ptrdiff_t rows = 0, columns = 0, depth = 0;
  float* sums = nullptr;  // [rows, columns]; may be null where out is given and the depth has one block only
  std::ptrdiff_t sums_stride = 0;
  bool add = false;          // to what is in sums
  GemmMatrix bias;           // [columns], optional
  GemmMatrix residual;       // [rows, columns], optional
  GemmMatrix out;            // [rows, columns], optional; written through
  float* scratch = nullptr;  // gemm_scratch_floats, for a, where it has to be packed
};

// A few rows times a matrix stored transposed, which is read once and in place: out = a b (+ bias + residual), the
// whole depth at once.
struct GemmThinArgs {
  GemmMatrix a;  // [rows, depth], at most gemm_thin_rows rows
  GemmMatrix b;  // [columns, depth]
  std::ptrdiff_t rows = 0, columns = 0, depth = 0;
  GemmMatrix bias, residual;  // [columns], [rows, columns]; optional
  GemmMatrix out;             // [rows, columns]; written through
};

struct GemmKernels {
  std::ptrdiff_t tile_rows, tile_columns;
  void (*pack)(const GemmPackArgs&);
  void (*block)(const GemmBlockArgs&);
  void (*thin)(const GemmThinArgs&);
};

// Sizes that all instruction sets share, so that plans do not depend on the machine. A task is at most gemm_block_rows
// rows of the output; a sliver's depth is at most gemm_block_depth, so that it stays in the first-level cache.
inline constexpr std::ptrdiff_t gemm_block_rows = 96;
inline constexpr std::ptrdiff_t gemm_block_depth = 384;
inline constexpr std::ptrdiff_t gemm_thin_rows = 16;
inline constexpr std::ptrdiff_t gemm_column_step = 64;  // a multiple of every tile's columns
inline constexpr std::ptrdiff_t gemm_scratch_floats = gemm_block_rows * (gemm_block_depth + 16);

template <Isa isa>
const GemmKernels& gemm_kernels();

}  // namespace tera::cpu
