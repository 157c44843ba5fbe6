#pragma once
// Loops over a row of floats vector by vector. A body is called as body(i, n): n is FullVector, or Tail for the last,
// incomplete vector; load, store and keep take it, so that one body serves both.

#include "tera/backend/cpu/kernels/vec.h"

namespace tera::cpu {
namespace {

struct FullVector {};
struct Tail {
  std::ptrdiff_t count;
};

template <class T>
[[maybe_unused]] inline Vec load(const T* p, FullVector) {
  return load(p);
}
template <class T>
[[maybe_unused]] inline Vec load(const T* p, Tail n) {
  return load_tail(p, n.count);
}
template <class T>
[[maybe_unused]] inline void store(T* p, Vec v, FullVector) {
  store(p, v);
}
template <class T>
[[maybe_unused]] inline void store(T* p, Vec v, Tail n) {
  store_tail(p, v, n.count);
}

// v in the lanes that exist, other elsewhere: for sums and maxima.
[[maybe_unused]] inline Vec keep(Vec v, FullVector, Vec) { return v; }
[[maybe_unused]] inline Vec keep(Vec v, Tail n, Vec other) {
  IntVec lane{};
  for (int i = 0; i < lanes; ++i) lane[i] = i;
  return lane < static_cast<std::int32_t>(n.count) ? v : other;
}

// Rounds a value to the precision of T.
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
  for (; i + lanes <= count; i += lanes) body(i, FullVector{});
  if (i < count) body(i, Tail{count - i});
}

// For reductions: body(i, n, slot) with four slots in turn, so that four independent sums hide the latency of an
// addition. The order is fixed by count alone.
constexpr int slots = 4;
template <class Body>
[[maybe_unused]] inline void reduce_row(std::ptrdiff_t count, Body body) {
  std::ptrdiff_t i = 0;
  for (; i + slots * lanes <= count; i += slots * lanes)
    for (int slot = 0; slot < slots; ++slot) body(i + slot * lanes, FullVector{}, slot);
  for (; i + lanes <= count; i += lanes) body(i, FullVector{}, 0);
  if (i < count) body(i, Tail{count - i}, 1);
}

struct Slots {
  Vec part[slots] = {};
  Vec& operator[](int slot) { return part[slot]; }
  float sum() const { return sum_lanes((part[0] + part[1]) + (part[2] + part[3])); }
};

}  // namespace
}  // namespace tera::cpu
