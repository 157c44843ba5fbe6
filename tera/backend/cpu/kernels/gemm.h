#pragma once
// GEMM kernels. gemm.cpp one folder up splits a GEMM into the blocks that they compute.

#include <cstddef>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

enum class GemmStorage : unsigned char { f32, bf16, f16 };

// A matrix in memory: rows `stride` elements apart.
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
// is given, out = sums, converted to its storage type.
struct GemmBlockArgs {
  GemmMatrix a;  // [rows, depth], or [depth, rows] where transposed
  bool transposed = false;
  const float* b = nullptr;  // packed
  std::ptrdiff_t rows = 0, columns = 0, depth = 0;
  float* sums = nullptr;  // [rows, columns]; may be null where out is given and the depth has one block only
  std::ptrdiff_t sums_stride = 0;
  bool add = false;          // sums += instead of =
  GemmMatrix bias;           // [columns], optional
  GemmMatrix residual;       // [rows, columns], optional
  GemmMatrix out;            // [rows, columns], optional; written through
  float* scratch = nullptr;  // gemm_scratch_floats, for a, where it has to be packed
};

// A thin GEMM: a few rows times a matrix stored transposed, which is read once and in place: out = a b (+ bias +
// residual), over the full depth.
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
// rows of the output; a sliver's depth is at most gemm_block_depth, so that it stays in the L1 cache.
inline constexpr std::ptrdiff_t gemm_block_rows = 96;
inline constexpr std::ptrdiff_t gemm_block_depth = 384;
inline constexpr std::ptrdiff_t gemm_thin_rows = 16;
inline constexpr std::ptrdiff_t gemm_column_step = 64;  // a multiple of every tile's columns
inline constexpr std::ptrdiff_t gemm_scratch_floats = gemm_block_rows * (gemm_block_depth + 16);

template <Isa isa>
const GemmKernels& gemm_kernels();

}  // namespace tera::cpu
