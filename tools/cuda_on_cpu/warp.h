#pragma once
// Warp-synchronous functions of CUDA C++ (shuffles, votes, reductions). A lane that is in no mask, or does not arrive,
// ends the program with its source location; the value of a lane that did not take part reads as all ones (NaN).

#include <bit>
#include <cstring>

#include "tools/cuda_on_cpu/block.h"

namespace cuda_on_cpu {

inline constexpr unsigned all_lanes = 0xffffffffu;

template <class T>
T value_of(const WarpExchange& exchanged, int lane) {
  T value;
  if (exchanged.arrived >> lane & 1)
    std::memcpy(&value, exchanged.values[lane], sizeof value);
  else
    std::memset(&value, 0xff, sizeof value);
  return value;
}

// The lanes that arrived for which `is_in(lane's value)` holds.
template <class T, class IsIn>
unsigned lanes_where(const WarpExchange& exchanged, const IsIn& is_in) {
  unsigned lanes = 0;
  for (int i = 0; i < 32; ++i)
    if ((exchanged.arrived >> i & 1) && is_in(value_of<T>(exchanged, i))) lanes |= 1u << i;
  return lanes;
}

template <class T, class Combine>
T reduced(unsigned mask, T value, Where where, const Combine& combine) {
  const WarpExchange& exchanged = exchange_lanes(mask, WarpOp::reduce, &value, sizeof value, where);
  const int first = std::countr_zero(exchanged.arrived);
  T result = value_of<T>(exchanged, first);
  for (int i = first + 1; i < 32; ++i)
    if (exchanged.arrived >> i & 1) result = combine(result, value_of<T>(exchanged, i));
  return result;
}

template <class T>
T shuffled(unsigned mask, T value, int from, Where where) {
  static_assert(sizeof value <= sizeof(WarpExchange::values[0]));
  return value_of<T>(exchange_lanes(mask, WarpOp::shuffle, &value, sizeof value, where), from);
}

}  // namespace cuda_on_cpu

inline void __syncwarp(unsigned mask = cuda_on_cpu::all_lanes,
                       cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  cuda_on_cpu::exchange_lanes(mask, cuda_on_cpu::WarpOp::sync, nullptr, 0, where);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32,
              cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  const int first = cuda_on_cpu::lane() & ~(width - 1);
  return cuda_on_cpu::shuffled(mask, value, first | (from & (width - 1)), where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32,
                  cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  const int lane = cuda_on_cpu::lane(), other = lane ^ with;
  return cuda_on_cpu::shuffled(mask, value, other / width > lane / width ? lane : other, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
                 cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  const int lane = cuda_on_cpu::lane(), other = lane - static_cast<int>(by);
  return cuda_on_cpu::shuffled(mask, value, other < (lane & ~(width - 1)) ? lane : other, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  const int lane = cuda_on_cpu::lane(), other = lane + static_cast<int>(by);
  return cuda_on_cpu::shuffled(mask, value, other > (lane | (width - 1)) ? lane : other, where);
}

inline unsigned __ballot_sync(unsigned mask, int yes, cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  const auto& exchanged = cuda_on_cpu::exchange_lanes(mask, cuda_on_cpu::WarpOp::vote, &yes, sizeof yes, where);
  return cuda_on_cpu::lanes_where<int>(exchanged, [](int value) { return value != 0; });
}
inline int __any_sync(unsigned mask, int yes, cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  return __ballot_sync(mask, yes, where) != 0;
}
inline int __all_sync(unsigned mask, int yes, cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  return __ballot_sync(mask, yes == 0, where) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  const auto& exchanged = cuda_on_cpu::exchange_lanes(mask, cuda_on_cpu::WarpOp::match, &value, sizeof value, where);
  return cuda_on_cpu::lanes_where<T>(exchanged, [value](T other) { return other == value; });
}

inline unsigned __reduce_max_sync(unsigned mask, unsigned value,
                                  cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  return cuda_on_cpu::reduced(mask, value, where, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value,
                                  cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  return cuda_on_cpu::reduced(mask, value, where, [](unsigned a, unsigned b) { return a < b ? a : b; });
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value,
                                  cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  return cuda_on_cpu::reduced(mask, value, where, [](unsigned a, unsigned b) { return a + b; });
}
