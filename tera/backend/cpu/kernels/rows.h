#pragma once
// Walking along a row of floats vector by vector. A body is called as body(i, n): n is Whole, or Part for the last,
// incomplete vector; load, store and keep take it, so that one body serves both.

#include "tera/backend/cpu/kernels/vec.h"

namespace tera::cpu {
namespace {

struct Whole {};
struct Part {
  std::ptrdiff_t count;
};

template <class T>
[[maybe_unused]] inline Vec load(const T* p, Whole) {
  return load(p);
}
template <class T>
[[maybe_unused]] inline Vec load(const T* p, Part n) {
  return load_part(p, n.count);
}
template <class T>
[[maybe_unused]] inline void store(T* p, Vec v, Whole) {
  store(p, v);
}
template <class T>
[[maybe_unused]] inline void store(T* p, Vec v, Part n) {
  store_part(p, v, n.count);
}

// v in the lanes that exist, other elsewhere: for sums and maxima.
[[maybe_unused]] inline Vec keep(Vec v, Whole, Vec) { return v; }
[[maybe_unused]] inline Vec keep(Vec v, Part n, Vec other) {
  IntVec lane{};
  for (int i = 0; i < lanes; ++i) lane[i] = i;
  return lane < static_cast<std::int32_t>(n.count) ? v : other;
}

// What a value becomes when it is stored as T.
template <class T>
[[maybe_unused]] inline Vec rounded(Vec v) {
  T part[lanes];
  store(part, v);
  return load(part);
}
template <>
[[maybe_unused]] inline Vec rounded<float>(Vec v) {
  return v;
}

template <class Body>
[[maybe_unused]] inline void over_row(std::ptrdiff_t count, Body body) {
  std::ptrdiff_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, Whole{});
  if (i < count) body(i, Part{count - i});
}

// For reductions: body(i, n, slot) with four slots in turn, so that four sums run side by side instead of each addition
// waiting for the one before. The order is fixed by count alone.
constexpr int slots = 4;
template <class Body>
[[maybe_unused]] inline void reduce_row(std::ptrdiff_t count, Body body) {
  std::ptrdiff_t i = 0;
  for (; i + slots * lanes <= count; i += slots * lanes)
    for (int slot = 0; slot < slots; ++slot) body(i + slot * lanes, Whole{}, slot);
  for (; i + lanes <= count; i += lanes) body(i, Whole{}, 0);
  if (i < count) body(i, Part{count - i}, 1);
}

struct Slots {
  Vec part[slots] = {};
  Vec& operator[](int slot) { return part[slot]; }
  float sum() const { return sum_lanes((part[0] + part[1]) + (part[2] + part[3])); }
};

}  // namespace
}  // namespace tera::cpu
