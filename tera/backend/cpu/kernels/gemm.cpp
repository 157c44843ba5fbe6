#include "tera/backend/cpu/kernels/gemm.h"

#include "tera/backend/cpu/kernels/gemm_tile.h"

namespace tera::cpu {
namespace {

template <class F>
void with_storage(GemmStorage storage, F f) {
  switch (storage) {
    case GemmStorage::f32: return f.template operator()<float>();
    case GemmStorage::bf16: return f.template operator()<Bf16>();
    case GemmStorage::f16: return f.template operator()<Fp16>();
  }
}

template <class T>
const T* at(const GemmMatrix& matrix, std::ptrdiff_t row, std::ptrdiff_t column) {
  return static_cast<const T*>(matrix.data) + row * matrix.stride + column;
}

void pack(const GemmPackArgs& args) {
  with_storage(args.b.storage, [&]<class T>() {
    for (std::ptrdiff_t j = 0; j < args.columns; j += tile_columns) {
      float* to = args.packed + j * args.depth;
      const std::ptrdiff_t columns = args.columns - j < tile_columns ? args.columns - j : tile_columns;
      if (args.transposed) pack_sliver_transposed(at<T>(args.b, j, 0), args.b.stride, args.depth, columns, to);
      else pack_sliver(at<T>(args.b, 0, j), args.b.stride, args.depth, columns, to);
    }
  });
}

// row += from, n elements of any storage.
void add_row(float* row, const GemmMatrix& from, std::ptrdiff_t i, std::ptrdiff_t j, std::ptrdiff_t n) {
  with_storage(from.storage, [&]<class T>() {
    const T* p = at<T>(from, i, j);
    std::ptrdiff_t c = 0;
    for (; c + lanes <= n; c += lanes) store(row + c, load(row + c) + load(p + c));
    if (c < n) store(row + c, load(row + c) + load_part(p + c, n - c));
  });
}

void write_row(const float* row, const GemmMatrix& to, std::ptrdiff_t i, std::ptrdiff_t j, std::ptrdiff_t n) {
  with_storage(to.storage, [&]<class T>() {
    T* p = const_cast<T*>(at<T>(to, i, j));
    std::ptrdiff_t c = 0;
    for (; c + lanes <= n; c += lanes) store(p + c, load(row + c));
    if (c < n) store_part(p + c, load(row + c), n - c);
  });
}

// The end of a tile that is not plain: at the right border, or with something to add or to convert. `tile` is
// [rows, tile_columns] at row i, column j of the block, n columns of it count.
void finish(const GemmBlockArgs& args, float* tile, std::ptrdiff_t i, std::ptrdiff_t rows, std::ptrdiff_t j,
            std::ptrdiff_t n) {
  const GemmMatrix sums{args.sums, args.sums_stride, GemmStorage::f32};
  for (std::ptrdiff_t r = 0; r < rows; ++r, tile += tile_columns) {
    if (args.add) add_row(tile, sums, i + r, j, n);
    if (args.bias.data) add_row(tile, args.bias, 0, j, n);
    if (args.residual.data) add_row(tile, args.residual, i + r, j, n);
    write_row(tile, args.out.data ? args.out : sums, i + r, j, n);
  }
}

// One tile at row i, column j. Not inlined: the sums are to have all registers.
template <Layout layout, int rows, int vectors>
[[gnu::noinline]] void tile_at(const GemmBlockArgs& args, const float* a, std::ptrdiff_t a_stride, std::ptrdiff_t i,
                               std::ptrdiff_t j) {
  const auto tile = tile_product<layout, rows, vectors>(args.depth, a, a_stride, args.b + j * args.depth, tile_columns);
  const std::ptrdiff_t n = args.columns - j < tile_columns ? args.columns - j : tile_columns;
  const bool plain = n == vectors * lanes && !args.bias.data && !args.residual.data && !args.out.data;
  if (plain) return tile_store(tile, args.sums + i * args.sums_stride + j, args.sums_stride, args.add);
  alignas(64) float buffer[rows * tile_columns];
  tile_store(tile, buffer, tile_columns, false);
  finish(args, buffer, i, rows, j, n);
}

template <Layout layout>
void multiply(const GemmBlockArgs& args, const float* a, std::ptrdiff_t a_stride) {
  for (std::ptrdiff_t j = 0; j < args.columns; j += tile_columns)
    for_each_height(args.rows, [&]<int height>(std::ptrdiff_t i) {
      // By columns, a is packed sliver after sliver: [height, depth] each, as wide as the tile that reads it.
      const float* from = layout == Layout::rows ? a + i * a_stride : a + i * args.depth;
      const std::ptrdiff_t stride = layout == Layout::rows ? a_stride : height;
      if (args.columns - j > lanes) tile_at<layout, height, tile_vectors>(args, from, stride, i, j);
      else tile_at<layout, height, 1>(args, from, stride, i, j);
    });
}

void block(const GemmBlockArgs& args) {
  with_storage(args.a.storage, [&]<class T>() {
    if (args.transposed) {
      for_each_height(args.rows, [&]<int height>(std::ptrdiff_t i) {
        pack_rows(at<T>(args.a, 0, i), args.a.stride, args.depth, height, args.scratch + i * args.depth, height);
      });
      return multiply<Layout::columns>(args, args.scratch, 0);
    }
    if (sizeof(T) == sizeof(float)) return multiply<Layout::rows>(args, at<float>(args.a, 0, 0), args.a.stride);
    // A little longer than the depth, so that rows do not fall on the same cache sets.
    const std::ptrdiff_t stride = gemm_block_depth + 16;
    pack_rows(at<T>(args.a, 0, 0), args.a.stride, args.rows, args.depth, args.scratch, stride);
    multiply<Layout::rows>(args, args.scratch, stride);
  });
}

}  // namespace

template <>
const GemmKernels& gemm_kernels<TERA_ISA>() {
  static constexpr GemmKernels kernels{tile_rows, tile_columns, pack, block};
  return kernels;
}

}  // namespace tera::cpu
