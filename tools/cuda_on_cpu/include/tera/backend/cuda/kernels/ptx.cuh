#pragma once
// What the build for the CPU has in place of tera/backend/cuda/kernels/ptx.cuh: the same functions, each doing what its
// instruction is said to do in the PTX manual.

#include <cmath>
#include <cstdint>

#include "tools/cuda_on_cpu/stop.h"
#include "tools/cuda_on_cpu/warp.h"

namespace tera::cuda::kernels::ptx {

using cuda_on_cpu::Where;

inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline float ex2_approx_ftz(float x) { return flushed(std::exp2(flushed(x))); }
inline float rcp_approx_ftz(float x) { return flushed(1.0f / flushed(x)); }

inline void require_aligned(const void* address, Where where) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0)
    cuda_on_cpu::stop("%s:%u: %p is no multiple of 16", where.file_name(), where.line(), address);
}

inline void st_global_v4(void* to, const uint4& words, Where where = Where::current()) {
  require_aligned(to, where);
  *static_cast<uint4*>(to) = words;
}

// The copy is done when its group is waited for, as late as it may be. It may also come at once: what was there is gone
// from here on, so that a reader who still wants it, or a writer who is not ordered before, shows.
inline void start_copy(void* to_shared, const void* from, int bytes, Where where) {
  require_aligned(to_shared, where);
  require_aligned(from, where);
  std::memset(to_shared, 0xff, 16);
  cuda_on_cpu::start_copy({to_shared, from, bytes, 16 - bytes});
}

inline void cp_async_16(void* to_shared, const void* from, Where where = Where::current()) {
  start_copy(to_shared, from, 16, where);
}
inline void cp_async_16_prefetch_128(void* to_shared, const void* from, Where where = Where::current()) {
  cp_async_16(to_shared, from, where);
}
inline void cp_async_16_or_zeros(void* to_shared, const void* from, bool exists, Where where = Where::current()) {
  start_copy(to_shared, from, exists ? 16 : 0, where);
}
inline void cp_async_commit_group() { cuda_on_cpu::commit_copies(); }
template <int pending>
inline void cp_async_wait_group() {
  for (;;) {
    const auto copies = cuda_on_cpu::next_copies(pending);
    if (copies.empty()) return;
    for (const cuda_on_cpu::Copy& copy : copies) {
      std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
      std::memset(static_cast<unsigned char*>(copy.to) + copy.bytes, 0, static_cast<std::size_t>(copy.zeros));
    }
  }
}

inline void bar_sync(int barrier, int threads, Where where = Where::current()) {
  cuda_on_cpu::sync_block(barrier, threads, where);
}

// Lane i gets, of matrix m, the elements 2 * (i % 4) and the next of row i / 4; transposed, of column i / 4.
template <bool transposed>
inline void ldmatrix(std::uint32_t (&to)[4], const void* row, Where where) {
  require_aligned(row, where);
  const auto& exchanged =
      cuda_on_cpu::exchange_lanes(cuda_on_cpu::all_lanes, cuda_on_cpu::WarpOp::matrix_load, &row, sizeof row, where);
  const int lane = cuda_on_cpu::lane();
  for (int m = 0; m < 4; ++m) {
    std::uint32_t pair = 0;
    for (int half = 0; half < 2; ++half) {
      const int pairs = lane % 4 * 2 + half, quad = lane / 4;
      const auto* from = cuda_on_cpu::value_of<const std::uint16_t*>(exchanged, m * 8 + (transposed ? pairs : quad));
      pair |= std::uint32_t{from[transposed ? quad : pairs]} << 16 * half;
    }
    to[m] = pair;
  }
}
inline void ldmatrix_x4(std::uint32_t (&to)[4], const void* row, Where where = Where::current()) {
  ldmatrix<false>(to, row, where);
}
inline void ldmatrix_x4_trans(std::uint32_t (&to)[4], const void* row, Where where = Where::current()) {
  ldmatrix<true>(to, row, where);
}

inline float to_float(std::uint16_t bits, __nv_bfloat16) { return __uint_as_float(std::uint32_t{bits} << 16); }
inline float to_float(std::uint16_t bits, __half) {
  __half_raw raw;
  raw.x = bits;
  return __half2float(__half(raw));
}

// What a lane has of a [16, 16] (rows i / 4 and i / 4 + 8, columns 2 * (i % 4), the next, and both 8 further) and of
// b [16, 8] (the same rows of its column i / 4), as floats.
struct MmaFragment {
  float a[2][4], b[4];
};
template <class T>
inline MmaFragment fragment_of(const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, T type) {
  MmaFragment result;
  for (int half = 0; half < 2; ++half) {
    const auto at = [half, type](std::uint32_t pair) {
      return to_float(static_cast<std::uint16_t>(pair >> 16 * half), type);
    };
    result.a[0][half] = at(a[0]);
    result.a[1][half] = at(a[1]);
    result.a[0][2 + half] = at(a[2]);
    result.a[1][2 + half] = at(a[3]);
    result.b[half] = at(b0);
    result.b[2 + half] = at(b1);
  }
  return result;
}

// Sums of 16 products are fp32, made before they are added to d; those of tensor cores differ in their last bits.
template <class T>
inline void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, T type,
                         Where where = Where::current()) {
  const MmaFragment mine = fragment_of(a, b0, b1, type);
  static_assert(sizeof mine <= sizeof(cuda_on_cpu::WarpExchange::values[0]));
  const auto& exchanged = cuda_on_cpu::exchange_lanes(cuda_on_cpu::all_lanes, cuda_on_cpu::WarpOp::matrix_multiply,
                                                      &mine, sizeof mine, where);
  const int lane = cuda_on_cpu::lane();
  const auto fragment = [&exchanged](int i) -> const MmaFragment& {
    return *reinterpret_cast<const MmaFragment*>(exchanged.values[i]);
  };
  float sum[2][2] = {};  // rows lane / 4 and lane / 4 + 8, columns 2 * (lane % 4) and the next
  for (int block = 0; block < 4; block += 2)
    for (int quad = 0; quad < 4; ++quad) {
      const MmaFragment& rows = fragment(lane / 4 * 4 + quad);
      for (int column = 0; column < 2; ++column) {
        const float* const b = fragment((lane % 4 * 2 + column) * 4 + quad).b + block;
        for (int row = 0; row < 2; ++row) sum[row][column] += rows.a[row][block] * b[0] + rows.a[row][block + 1] * b[1];
      }
    }
  for (int i = 0; i < 4; ++i) d[i] += sum[i / 2][i % 2];
}

}  // namespace tera::cuda::kernels::ptx
