#pragma once
// Building blocks of GEMM: a tile of sums held in registers, and the packing that feeds it. Include only
// from kernels/*.cpp; everything is in an anonymous namespace on purpose, see isa.h.
//
// A tile is up to tile_rows x tile_columns sums. Its left operand is read one element at a time and broadcast to a
// vector, so it may lie by rows or by columns; its right operand is read in vectors, so each of its rows is contiguous.
// Every sum adds its products in the order of k, whatever the size of the tile around it.

#include "tera/backend/cpu/kernels/vec.h"

namespace tera::cpu {
namespace {

// As many sums as there are registers, minus those of the operands.
#if defined(__AVX512F__)
constexpr int tile_rows = 12;
#elif defined(__aarch64__)
constexpr int tile_rows = 12;
#else
constexpr int tile_rows = 6;
#endif
constexpr int tile_vectors = 2;
constexpr int tile_columns = tile_vectors * lanes;

constexpr int cache_line = 16;    // floats
constexpr int prefetch_rows = 8;  // packing reads short pieces of distant rows, which the hardware prefetcher misses

enum class Layout { rows, columns };  // element (i, k) of the left operand is a[i*stride + k], or a[k*stride + i]

template <int rows, int vectors>
struct Tile {
  Vec sum[rows][vectors];
};

// a b for a [rows,depth] laid out as `layout` says with stride a_stride, and b [depth, vectors*lanes], rows b_stride
// apart.
template <Layout layout, int rows, int vectors>
[[maybe_unused, gnu::always_inline]] inline Tile<rows, vectors> tile_gemm(std::ptrdiff_t depth, const float* a,
                                                                          std::ptrdiff_t a_stride, const float* b,
                                                                          std::ptrdiff_t b_stride) {
  Tile<rows, vectors> tile{};
  for (std::ptrdiff_t k = 0; k < depth; ++k) {
    Vec right[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) right[v] = load(b + v * lanes);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const Vec left = splat(layout == Layout::rows ? a[i * a_stride] : a[i]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) tile.sum[i][v] += left * right[v];
    }
    a += layout == Layout::rows ? 1 : a_stride;
    b += b_stride;
  }
  return tile;
}

// c = tile, or c += tile.
template <int rows, int vectors>
[[maybe_unused, gnu::always_inline]] inline void tile_store(const Tile<rows, vectors>& tile, float* c,
                                                            std::ptrdiff_t c_stride, bool add) {
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      float* to = c + i * c_stride + v * lanes;
      store(to, add ? load(to) + tile.sum[i][v] : tile.sum[i][v]);
    }
}

// c = tile + plus, where plus has the size of c.
template <int rows, int vectors>
[[maybe_unused, gnu::always_inline]] inline void tile_store_sum(const Tile<rows, vectors>& tile, const float* plus,
                                                                std::ptrdiff_t plus_stride, float* c,
                                                                std::ptrdiff_t c_stride) {
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      store(c + i * c_stride + v * lanes, load(plus + i * plus_stride + v * lanes) + tile.sum[i][v]);
}

// Prefetches the cache lines of c, so that they have arrived when the sums are complete: a GEMM of short depth would
// otherwise wait for memory at the end of every tile.
template <int rows, int vectors>
[[maybe_unused, gnu::always_inline]] inline void tile_prefetch(const float* c, std::ptrdiff_t c_stride) {
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < vectors * lanes; j += cache_line) __builtin_prefetch(c + i * c_stride + j, 1);
}

// Calls f.template operator()<height>(first row) for heights that add up to `rows`: as many full tiles as fit, then the
// halves of the rest, so that no work is done for missing rows.
template <int height = tile_rows, class F>
[[maybe_unused]] inline void for_each_height(std::ptrdiff_t rows, F f, std::ptrdiff_t first = 0) {
  for (; first + height <= rows; first += height) f.template operator()<height>(first);
  if constexpr (height > 1) {
    constexpr int next = height > 8 ? 8 : height > 4 ? 4 : height / 2;
    if (first < rows) for_each_height<next>(rows, f, first);
  }
}

// Transposes lanes x lanes floats, one row per vector, by exchanging ever larger halves.
template <int width = 1>
[[maybe_unused, gnu::always_inline]] inline void transpose(Vec (&row)[lanes]) {
  if constexpr (width < lanes) {
    IntVec low{}, high{};
    for (int i = 0; i < lanes; ++i) {
      low[i] = (i & width) ? lanes + i - width : i;
      high[i] = (i & width) ? lanes + i : i + width;
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i)
      if ((i & width) == 0) {
        const Vec upper = row[i], lower = row[i + width];
        row[i] = __builtin_shuffle(upper, lower, low);
        row[i + width] = __builtin_shuffle(upper, lower, high);
      }
    transpose<width * 2>(row);
  }
}

// Right operands are packed in slivers of tile_columns columns, [depth, tile_columns] each, padded with zeros. This
// packs one sliver from rows: b [depth, columns], rows `stride` apart.
template <class T>
[[maybe_unused]] inline void pack_sliver(const T* b, std::ptrdiff_t stride, std::ptrdiff_t depth,
                                         std::ptrdiff_t columns, float* to) {
  for (std::ptrdiff_t k = 0; k < depth; ++k, b += stride, to += tile_columns) {
    for (std::ptrdiff_t i = 0; i < columns; i += cache_line) __builtin_prefetch(b + prefetch_rows * stride + i);
    for (int v = 0; v < tile_columns; v += lanes) {
      const std::ptrdiff_t left = columns - v;
      store(to + v, left >= lanes ? load(b + v) : left > 0 ? load_tail(b + v, left) : zero());
    }
  }
}

// Packs one sliver from columns: b is stored transposed, [columns, depth], rows `stride` apart.
template <class T>
[[maybe_unused]] inline void pack_sliver_transposed(const T* b, std::ptrdiff_t stride, std::ptrdiff_t depth,
                                                    std::ptrdiff_t columns, float* to) {
  for (int v = 0; v < tile_columns; v += lanes)
    for (std::ptrdiff_t k = 0; k < depth; k += lanes) {
      const std::ptrdiff_t length = depth - k < lanes ? depth - k : lanes;
      Vec square[lanes];
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) {
        const T* from = b + (v + i) * stride + k;
        square[i] = v + i >= columns ? zero() : length == lanes ? load(from) : load_tail(from, length);
      }
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i)
        if (i < length) store(to + (k + i) * tile_columns + v, square[i]);
    }
}

// Left operands need packing only to convert their storage type or their layout. By rows it is a plain copy.
template <class T>
[[maybe_unused]] inline void pack_rows(const T* from, std::ptrdiff_t stride, std::ptrdiff_t rows,
                                       std::ptrdiff_t columns, float* to, std::ptrdiff_t to_stride) {
  for (std::ptrdiff_t i = 0; i < rows; ++i, from += stride, to += to_stride) {
    std::ptrdiff_t j = 0;
    for (; j + lanes <= columns; j += lanes) store(to + j, load(from + j));
    if (j < columns) store_tail(to + j, load_tail(from + j, columns - j), columns - j);
  }
}

// By columns: a [depth, rows] becomes slivers [depth, height] for the heights of for_each_height. One sliver at a time
// would read the same cache lines twice, so all full ones are written side by side.
template <class T>
[[maybe_unused]] inline void pack_columns(const T* a, std::ptrdiff_t stride, std::ptrdiff_t depth, std::ptrdiff_t rows,
                                          float* to) {
  constexpr int width = (tile_rows + lanes - 1) / lanes * lanes;
  // Full vectors overrun the sliver; what they overwrite is written right after, except in the last row.
  const std::ptrdiff_t full_rows =
      rows / tile_rows * tile_rows - (rows % tile_rows < width - tile_rows ? tile_rows : 0);
  for (std::ptrdiff_t k = 0; k + 1 < depth; ++k) {
    for (std::ptrdiff_t i = 0; i < rows; i += cache_line) __builtin_prefetch(a + (k + prefetch_rows) * stride + i);
    for (std::ptrdiff_t i = 0; i < full_rows; i += tile_rows)
#pragma GCC unroll 4
      for (int v = 0; v < width; v += lanes) store(to + i * depth + k * tile_rows + v, load(a + k * stride + i + v));
  }
  for_each_height(rows, [&]<int height>(std::ptrdiff_t i) {
    for (std::ptrdiff_t k = i < full_rows && depth > 0 ? depth - 1 : 0; k < depth; ++k)
      for (int r = 0; r < height; r += lanes) {
        constexpr int last = height % lanes;
        float* sliver = to + i * depth + k * height + r;
        const T* from = a + k * stride + i + r;
        if (r + lanes <= height)
          store(sliver, load(from));
        else
          store_tail(sliver, load_tail(from, last), last);
      }
  });
}

}  // namespace
}  // namespace tera::cpu
