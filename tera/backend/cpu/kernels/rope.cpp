#include "tera/backend/cpu/kernels/rope.h"

#include "tera/backend/cpu/kernels/vec.h"

namespace tera::cpu {
namespace {

template <class T>
Vec load_some(const T* p, std::ptrdiff_t n) {
  return n >= lanes ? load(p) : load_tail(p, n);
}
template <class T>
void store_some(T* p, Vec v, std::ptrdiff_t n) {
  if (n >= lanes)
    store(p, v);
  else
    store_tail(p, v, n);
}

// Rotates the pairs (i, i+pairs) of one head (half-split layout).
template <class T>
void rotate_halves(T* x, const float* cos, const float* sin, float sign, std::ptrdiff_t pairs) {
  for (std::ptrdiff_t i = 0; i < pairs; i += lanes) {
    const std::ptrdiff_t n = pairs - i;
    const Vec c = load_some(cos + i, n), s = load_some(sin + i, n) * sign;
    const Vec a = load_some(x + i, n), b = load_some(x + pairs + i, n);
    store_some(x + i, a * c - b * s, n);
    store_some(x + pairs + i, b * c + a * s, n);
  }
}

// Deinterleaves `lanes` pairs (a0 b0 a1 b1 ...) of two vectors into a and b, or interleaves them.
void deinterleave_pairs(Vec& first, Vec& second) {
  IntVec even{}, odd{};
  for (int i = 0; i < lanes; ++i) {
    even[i] = 2 * i;
    odd[i] = 2 * i + 1;
  }
  const Vec a = __builtin_shuffle(first, second, even), b = __builtin_shuffle(first, second, odd);
  first = a;
  second = b;
}
void join_pairs(Vec& a, Vec& b) {
  IntVec low{}, high{};
  for (int i = 0; i < lanes; ++i) {
    low[i] = i / 2 + (i % 2) * lanes;
    high[i] = low[i] + lanes / 2;
  }
  const Vec first = __builtin_shuffle(a, b, low), second = __builtin_shuffle(a, b, high);
  a = first;
  b = second;
}

// Rotates the pairs (2i, 2i+1) of one head (interleaved layout).
template <class T>
void rotate_neighbours(T* x, const float* cos, const float* sin, float sign, std::ptrdiff_t pairs) {
  for (std::ptrdiff_t i = 0; i < pairs; i += lanes) {
    const std::ptrdiff_t n = pairs - i, low = 2 * n < lanes ? 2 * n : lanes, high = 2 * n - low;
    const Vec c = load_some(cos + i, n), s = load_some(sin + i, n) * sign;
    Vec a = load_some(x + 2 * i, low), b = load_some(x + 2 * i + low, high);
    deinterleave_pairs(a, b);
    Vec first = a * c - b * s, second = b * c + a * s;
    join_pairs(first, second);
    store_some(x + 2 * i, first, low);
    store_some(x + 2 * i + low, second, high);
  }
}

template <class T>
void rotate(const RopeRows& args) {
  const float sign = args.inverse ? -1.0f : 1.0f;
  const auto rotate_head = args.interleaved ? rotate_neighbours<T> : rotate_halves<T>;
  for (std::ptrdiff_t row = 0; row < args.rows; ++row) {
    const std::ptrdiff_t at = args.positions[row] * args.pairs;
    T* x = static_cast<T*>(args.x) + row * args.stride;
    for (std::ptrdiff_t head = 0; head < args.heads; ++head)
      rotate_head(x + head * args.head_size, args.cos + at, args.sin + at, sign, args.pairs);
  }
}

}  // namespace

template <>
const RopeKernels& rope_kernels<TERA_ISA>() {
  static constexpr RopeKernels kernels{{rotate<float>, rotate<Bf16>, rotate<Fp16>}};
  return kernels;
}

}  // namespace tera::cpu
