#pragma once
// Functions of CUDA C++ in which the lanes of a warp meet. A lane that is in no mask, or does not come, ends the
// program with the place in the source; the value of a lane that did not take part reads as all ones (NaN).

#include <bit>
#include <cstring>

#include "tools/cuda_on_cpu/block.h"

namespace cuda_on_cpu {

inline constexpr unsigned all_lanes = 0xffffffffu;

template <class T>
T value_of(const Meeting& meeting, int lane) {
  T value;
  if (meeting.arrived >> lane & 1)
    std::memcpy(&value, meeting.values[lane], sizeof value);
  else
    std::memset(&value, 0xff, sizeof value);
  return value;
}

// The lanes that came for which `is_in(lane's value)` holds.
template <class T, class IsIn>
unsigned lanes_where(const Meeting& meeting, const IsIn& is_in) {
  unsigned lanes = 0;
  for (int i = 0; i < 32; ++i)
    if ((meeting.arrived >> i & 1) && is_in(value_of<T>(meeting, i))) lanes |= 1u << i;
  return lanes;
}

template <class T, class Combine>
T reduced(unsigned mask, T value, Where where, const Combine& combine) {
  const Meeting& meeting = meet(mask, Meets::reduce, &value, sizeof value, where);
  const int first = std::countr_zero(meeting.arrived);
  T result = value_of<T>(meeting, first);
  for (int i = first + 1; i < 32; ++i)
    if (meeting.arrived >> i & 1) result = combine(result, value_of<T>(meeting, i));
  return result;
}

template <class T>
T shuffled(unsigned mask, T value, int from, Where where) {
  static_assert(sizeof value <= sizeof(Meeting::values[0]));
  return value_of<T>(meet(mask, Meets::shuffle, &value, sizeof value, where), from);
}

}  // namespace cuda_on_cpu

inline void __syncwarp(unsigned mask = cuda_on_cpu::all_lanes,
                       cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  cuda_on_cpu::meet(mask, cuda_on_cpu::Meets::sync, nullptr, 0, where);
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
  const auto& meeting = cuda_on_cpu::meet(mask, cuda_on_cpu::Meets::vote, &yes, sizeof yes, where);
  return cuda_on_cpu::lanes_where<int>(meeting, [](int value) { return value != 0; });
}
inline int __any_sync(unsigned mask, int yes, cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  return __ballot_sync(mask, yes, where) != 0;
}
inline int __all_sync(unsigned mask, int yes, cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  return __ballot_sync(mask, yes == 0, where) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  const auto& meeting = cuda_on_cpu::meet(mask, cuda_on_cpu::Meets::match, &value, sizeof value, where);
  return cuda_on_cpu::lanes_where<T>(meeting, [value](T other) { return other == value; });
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
