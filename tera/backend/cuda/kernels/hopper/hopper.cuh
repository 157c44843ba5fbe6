#pragma once
// The PTX of Hopper's GEMM kernels, which CUDA C++ does not expose: thread block clusters, mbarriers (transaction
// barriers in shared memory), TMA loads, stores and reductions, wgmma (matrix multiply-accumulate by a warpgroup of 128
// threads), setmaxnreg. For code compiled for sm_90a alone.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace tera::cuda::kernels::hopper {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- thread block clusters: blocks that run at the same time and see each other's shared memory ----------------------

__device__ inline std::uint32_t rank_in_cluster() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for all threads of the cluster, which then see what each wrote before.
__device__ inline void sync_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}

// --- mbarriers -------------------------------------------------------------------------------------------------------

__device__ inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the mbarriers this thread initialised visible to TMA and the cluster; sync_cluster() comes next, or
// __syncthreads() where a block is alone.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrives, and lets the phase wait for so many bytes of TMA loads as well (its transaction count).
__device__ inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ inline void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the mbarrier that lies at this address in the block of this rank. It means that shared memory was read, by
// wgmma that has completed; what this thread wrote is not ordered for other blocks, which would cost a fence.
__device__ inline void mbarrier_arrive_cluster(std::uint32_t barrier, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// Returns when the phase of this parity has ended. The phase before the first counts as ended, with parity 1.
__device__ inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@ended bra done;\n"
      "bra again;\n"
      "done:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A position in a circular buffer of pipeline stages that the producer fills and the consumers empty. parity is that of
// the mbarrier's phase in which the stage is filled.
template <int stages>
struct PipelineState {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void next() {
    if constexpr (stages == 2) {  // without a branch
      stage ^= 1;
      if (stage == 0) parity ^= 1;
    } else {
      if (++stage < stages) return;
      stage = 0;
      parity ^= 1;
    }
  }
};

// --- TMA and bulk copies ---------------------------------------------------------------------------------------------

// The first element of a TMA box. Elements outside of the tensor are loaded as zeros, and count as bytes.
struct TmaCoordinates {
  int x = 0, y = 0, z = 0;
};

__device__ inline void tma_load(std::uint32_t to, const CUtensorMap& map, TmaCoordinates at, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(&map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(barrier)
      : "memory");
}

// TMA multicast: loads to the same offset in the shared memory of every block of the mask, whose mbarriers at the same
// offset count the bytes.
__device__ inline void tma_load_multicast(std::uint16_t blocks, std::uint32_t to, const CUtensorMap& map,
                                          TmaCoordinates at, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(barrier), "h"(blocks)
      : "memory");
}

// Stores a box from shared memory, where it has the swizzled layout of tma_load(); elements outside of the tensor are
// not written. A thread commits its stores as a bulk group, and waits for them.
__device__ inline void tma_store(const CUtensorMap& map, TmaCoordinates at, std::uint32_t from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(at.x), "r"(at.y), "r"(at.z), "r"(from)
               : "memory");
}
// TMA store that adds to global memory: one rounding for each element, whatever the order.
__device__ inline void tma_reduce_add(const CUtensorMap& map, TmaCoordinates at, std::uint32_t from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
      "r"(at.x), "r"(at.y), "r"(at.z), "r"(from)
      : "memory");
}
__device__ inline void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Returns when shared memory was read and may be written again, but for the last `pending` bulk groups.
template <int pending = 0>
__device__ inline void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
__device__ inline void bulk_wait_group() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Bulk copies of contiguous bytes, a multiple of 16 from and to multiples of 16.
__device__ inline void bulk_load(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ inline void bulk_store(void* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
               "r"(from), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_reduce_add(float* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
      "r"(from), "r"(bytes)
      : "memory");
}

// Prefetches bytes (a multiple of 16) into L2.
__device__ inline void bulk_prefetch_l2(const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}

// Orders bulk stores (the async proxy) with the flags that this thread exchanges with other blocks: stores that have
// completed before store_release(), those that are to begin after load_acquire().
__device__ inline void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ inline int load_acquire(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_release(int* to, int value) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// Makes what this thread wrote to shared memory visible to wgmma and TMA (the async proxy) after the next barrier.
__device__ inline void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Loads 16 bytes of shared memory.
__device__ inline uint4 load_shared(std::uint32_t from) {
  uint4 words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(from)
               : "memory");
  return words;
}

__device__ inline void store_shared(std::uint32_t to, uint4 words) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words.x), "r"(words.y), "r"(words.z),
               "r"(words.w)
               : "memory");
}

// A warp stores four matrices of 8 x 8 elements of 16 bits to shared memory. Thread t has columns 2 (t % 4) and the
// next of row t / 4 of each; row t % 8 of matrix t / 8 goes to the address that it names.
__device__ inline void stmatrix_x4(std::uint32_t to, const std::uint32_t (&two)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(two[0]), "r"(two[1]),
               "r"(two[2]), "r"(two[3])
               : "memory");
}

// --- warp specialisation ---------------------------------------------------------------------------------------------

// All warps of a warpgroup call it: sets how many registers each thread has from here on.
template <int registers>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Waits for `threads` threads of the block at the named barrier `number` (0 is that of __syncthreads()).
template <int threads>
__device__ inline void named_barrier_sync(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(threads) : "memory");
}

// --- wgmma -----------------------------------------------------------------------------------------------------------

// The wgmma matrix descriptor of an operand in shared memory, in rows of 128 bytes with TMA's 128-byte swizzle: eight
// rows are 1024 bytes, and it begins at a multiple of those (16 or 32 terms further inside a row, too). A row runs
// along the reduction dimension k (K-major), or is one k of 64 elements of m or n (MN-major) whose next 64 begin
// `apart` bytes further; a K-major operand has no such distance, and says 16.
__device__ inline std::uint64_t matrix_descriptor(std::uint32_t address, std::uint32_t apart) {
  constexpr std::uint64_t eight_rows = 1024 >> 4, swizzled_128 = 1;
  return std::uint64_t{(address & 0x3ffff) >> 4} | std::uint64_t{apart >> 4} << 16 | eight_rows << 32 |
         swizzled_128 << 62;
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when at most `pending` wgmma groups are in flight.
template <int pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Keeps the compiler from moving uses of the accumulators across this point.
template <int count>
__device__ inline void wgmma_fence_registers(float (&sum)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

// Spelled once for both types: the operands of one instruction are 64 or 128 registers.
// clang-format off
#define TERA_NAMES_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TERA_NAMES_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TERA_NAMES_128 TERA_NAMES_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TERA_SUMS_8(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), \
                       "+f"(sum[i + 4]), "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define TERA_SUMS_64(i) TERA_SUMS_8(i), TERA_SUMS_8(i + 8), TERA_SUMS_8(i + 16), TERA_SUMS_8(i + 24), \
                        TERA_SUMS_8(i + 32), TERA_SUMS_8(i + 40), TERA_SUMS_8(i + 48), TERA_SUMS_8(i + 56)
#define TERA_WGMMA(shape, type, names, a, b, add, trans_a, trans_b, ...)                                 \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " add ", 0;\n"                                       \
               "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names "}, " a ", " b        \
               ", adds, 1, 1, " trans_a ", " trans_b ";\n}"                                                 \
               : __VA_ARGS__ : "l"(left), "l"(right), "r"(add_to), "n"(left_along_m), "n"(right_along_n))
#define TERA_SUMS_32(i) TERA_SUMS_8(i), TERA_SUMS_8(i + 8), TERA_SUMS_8(i + 16), TERA_SUMS_8(i + 24)
#define TERA_WGMMA_64(type) TERA_WGMMA("m64n64k16", type, TERA_NAMES_32, "%32", "%33", "%34", "%35", "%36", \
                                           TERA_SUMS_32(0))
#define TERA_WGMMA_RS(shape, type, names, a0, a1, a2, a3, b, add, trans_b, ...)                      \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " add ", 0;\n"                                            \
               "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names "}, {" a0 ", " a1 ", " a2 ", " \
               a3 "}, " b ", adds, 1, 1, " trans_b ";\n}"                                                         \
               : __VA_ARGS__                                                                                     \
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(add_to), "n"(right_along_n))
#define TERA_WGMMA_RS_64(type) TERA_WGMMA_RS("m64n64k16", type, TERA_NAMES_32, "%32", "%33", \
                                               "%34", "%35", "%36", "%37", "%38", TERA_SUMS_32(0))
#define TERA_WGMMA_RS_128(type) TERA_WGMMA_RS("m64n128k16", type, TERA_NAMES_64, "%64", "%65", \
                                                "%66", "%67", "%68", "%69", "%70", TERA_SUMS_64(0))
#define TERA_WGMMA_128(type) TERA_WGMMA("m64n128k16", type, TERA_NAMES_64, "%64", "%65", "%66", "%67", "%68", \
                                            TERA_SUMS_64(0))
#define TERA_WGMMA_256(type) TERA_WGMMA("m64n256k16", type, TERA_NAMES_128, "%128", "%129", "%130", "%131", \
                                            "%132", TERA_SUMS_64(0), TERA_SUMS_64(64))
// clang-format on

// Issues sum [64,n] (+)= left [64,16] right [16,n] with n = 64, 128 or 256, by all four warps of a warpgroup. Thread
// t has rows r = 16 (t / 32) + t % 32 / 4 and r + 8, and columns c = 8 j + 2 (t % 4) and c + 1 of every eight: sums 4 j
// and 4 j + 1 are of row r, the next two of row r + 8. left_along_m, right_along_n: 0 where k lies along memory,
// else 1.
template <class T, int left_along_m, int right_along_n, int count>
__device__ inline void wgmma(float (&sum)[count], std::uint64_t left, std::uint64_t right, int add_to) {
  constexpr bool bf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(count == 32 || count == 64 || count == 128);
  if constexpr (count == 32 && bf16)
    TERA_WGMMA_64("bf16");
  else if constexpr (count == 32)
    TERA_WGMMA_64("f16");
  else if constexpr (count == 64 && bf16)
    TERA_WGMMA_128("bf16");
  else if constexpr (count == 64)
    TERA_WGMMA_128("f16");
  else if constexpr (bf16)
    TERA_WGMMA_256("bf16");
  else
    TERA_WGMMA_256("f16");
}

// Issues wgmma with n = 64 or 128 and left in registers (RS), two elements in each: thread t has terms 2 (t % 4) and
// the next of rows r and r + 8, then terms 8 further of both, as it has them of sums.
template <class T, int right_along_n, int count>
__device__ inline void wgmma(float (&sum)[count], const std::uint32_t* left, std::uint64_t right, int add_to) {
  constexpr bool bf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(count == 32 || count == 64);
  if constexpr (count == 32 && bf16)
    TERA_WGMMA_RS_64("bf16");
  else if constexpr (count == 32)
    TERA_WGMMA_RS_64("f16");
  else if constexpr (bf16)
    TERA_WGMMA_RS_128("bf16");
  else
    TERA_WGMMA_RS_128("f16");
}

#undef TERA_NAMES_32
#undef TERA_NAMES_64
#undef TERA_NAMES_128
#undef TERA_SUMS_8
#undef TERA_SUMS_64
#undef TERA_WGMMA
#undef TERA_SUMS_32
#undef TERA_WGMMA_64
#undef TERA_WGMMA_RS
#undef TERA_WGMMA_RS_64
#undef TERA_WGMMA_RS_128
#undef TERA_WGMMA_128
#undef TERA_WGMMA_256

}  // namespace tera::cuda::kernels::hopper
