#pragma once
// Building blocks of the forward and backward kernels of flash attention: matmul on register tiles, packing, exp2. In
// an anonymous namespace: see isa.h.

#include "tera/backend/cpu/kernels/attention.h"
#include "tera/backend/cpu/kernels/gemm_tile.h"

namespace tera::cpu {
namespace {

constexpr float log2_e = 1.44269504f;
constexpr float ln_2 = 0.693147181f;
constexpr float infinity = __builtin_inff();

struct Floats {
  float* data = nullptr;
  std::ptrdiff_t stride = 0;  // from row to row
  float* row(std::ptrdiff_t i) const { return data + i * stride; }
};

// c = a b, or c += a b; a [rows, depth] as `layout` says, b [depth, columns], columns a multiple of lanes.
template <Layout layout, int rows>
[[maybe_unused, gnu::always_inline]] inline void multiply(std::ptrdiff_t depth, std::ptrdiff_t columns, Floats a,
                                                          Floats b, Floats c, bool add) {
  std::ptrdiff_t j = 0;
  for (; j + tile_columns <= columns; j += tile_columns)
    tile_store(tile_gemm<layout, rows, tile_vectors>(depth, a.data, a.stride, b.data + j, b.stride), c.data + j,
               c.stride, add);
  for (; j < columns; j += lanes)
    tile_store(tile_gemm<layout, rows, 1>(depth, a.data, a.stride, b.data + j, b.stride), c.data + j, c.stride, add);
}

// A bump allocator over the scratch of a thread.
class Scratch {
 public:
  explicit Scratch(float* next) : next_(next) {}
  float* take(std::ptrdiff_t floats) {
    float* taken = next_;
    next_ += floats;
    return taken;
  }
  Floats take_rows(std::ptrdiff_t rows, std::ptrdiff_t width) { return {take(rows * width), width}; }

 private:
  float* next_;
};

[[maybe_unused]] inline std::ptrdiff_t padded_to_vectors(std::ptrdiff_t n) { return (n + lanes - 1) / lanes * lanes; }

template <class T>
[[maybe_unused]] inline const T* source(AttentionRows rows, std::ptrdiff_t first) {
  return static_cast<const T*>(rows.data) + first * rows.stride;
}

// to[i] = scale * from[i], padded with zeros to full vectors.
template <class T>
[[maybe_unused]] inline void pack(const T* from, std::ptrdiff_t stride, std::ptrdiff_t rows, std::ptrdiff_t columns,
                                  float scale, Floats to) {
  for (std::ptrdiff_t i = 0; i < rows; ++i) {
    const T* x = from + i * stride;
    float* y = to.row(i);
    std::ptrdiff_t j = 0;
    for (; j + lanes <= columns; j += lanes) store(y + j, load(x + j) * scale);
    if (j < columns) store(y + j, load_tail(x + j, columns - j) * scale);
  }
}

// to[j][i] = from[i][j]; padded with zeros to full vectors. Rows of `to` beyond `columns` are not written.
template <class T>
[[maybe_unused]] inline void pack_transposed(const T* from, std::ptrdiff_t stride, std::ptrdiff_t rows,
                                             std::ptrdiff_t columns, Floats to) {
  for (std::ptrdiff_t i0 = 0; i0 < rows; i0 += lanes)
    for (std::ptrdiff_t j = 0; j < columns; j += lanes) {
      const std::ptrdiff_t length = columns - j < lanes ? columns - j : lanes;
      Vec square[lanes];
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) {
        const T* x = from + (i0 + i) * stride + j;
        square[i] = i0 + i >= rows ? zero() : length == lanes ? load(x) : load_tail(x, length);
      }
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i)
        if (i < length) store(to.row(j + i) + i0, square[i]);
    }
}

// 2^x for x <= 127, relative error about 1e-7; 0 below -126 (so for -inf), NaN for NaN.
[[maybe_unused]] inline Vec exp2_fast(Vec x) {
  const Vec clamped = vmax(splat(-126.0f), x);
  // 1.5 * 2^23 pushes the fraction out of the mantissa; the 127 more make its low bits the exponent field of 2^n.
  const Vec shifted = clamped + 12583039.0f;
  const Vec r = clamped - (shifted - 12583039.0f);
  Vec p = splat(1.559467754e-4f);
  p = p * r + 1.340664390e-3f;
  p = p * r + 9.617692975e-3f;
  p = p * r + 5.550310551e-2f;
  p = p * r + 2.402265278e-1f;
  p = p * r + 6.931472150e-1f;
  p = p * r + 1.0f;
  const Vec power = p * as_float(as_bits(shifted) << 23);
  return x < -126.0f ? zero() : power;
}

template <int width>
[[maybe_unused]] inline Vec rotate_lanes(Vec v) {
  IntVec from{};
  for (int i = 0; i < lanes; ++i) from[i] = (i + width) % lanes;
  return __builtin_shuffle(v, from);
}

// Broadcasts the maximum of all lanes to every lane.
template <int width = lanes / 2>
[[maybe_unused]] inline Vec broadcast_max(Vec v) {
  v = vmax(v, rotate_lanes<width>(v));
  if constexpr (width > 1) return broadcast_max<width / 2>(v);
  return v;
}

// Rows to prefetch into the L2 cache during matmuls: rows of a head are far apart, so that the hardware prefetcher
// misses them.
class Prefetch {
 public:
  template <class T>
  void add(const T* first, std::ptrdiff_t stride, std::ptrdiff_t rows, std::ptrdiff_t columns) {
    constexpr auto size = static_cast<std::ptrdiff_t>(sizeof(T));
    streams_[count_++] = {reinterpret_cast<const char*>(first), stride * size, columns * size, rows};
  }
  void step(std::ptrdiff_t rows) {
    for (int i = 0; i < count_; ++i) {
      Stream& stream = streams_[i];
      for (std::ptrdiff_t n = 0; n < rows && stream.rows > 0; ++n, --stream.rows, stream.row += stream.stride)
        for (std::ptrdiff_t byte = 0; byte < stream.bytes; byte += 64) __builtin_prefetch(stream.row + byte, 0, 2);
    }
  }

 private:
  struct Stream {
    const char* row;
    std::ptrdiff_t stride, bytes, rows;
  };
  Stream streams_[6];
  int count_ = 0;
};

// Sets columns [from, to) of a row.
[[maybe_unused]] inline void fill_columns(float* row, std::ptrdiff_t from, std::ptrdiff_t to, float value) {
  for (std::ptrdiff_t j = from; j < to; ++j) row[j] = value;
}

}  // namespace
}  // namespace tera::cpu
