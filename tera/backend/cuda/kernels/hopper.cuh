#pragma once
// Hopper's instructions for matrix products that CUDA C++ has no words for: barriers in shared memory that count bytes,
// copies of tiles by the copy engine, products by a warpgroup (128 threads). For code compiled for sm_90a alone.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace tera::cuda::kernels::hopper {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- clusters: blocks that run at the same time and see each other's shared memory -----------------------------------

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

// --- barriers --------------------------------------------------------------------------------------------------------

__device__ inline void init_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the barriers this thread initialised known to the copy engine and the cluster; sync_cluster() comes next, or
// __syncthreads() where a block is alone.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrives, and lets the phase wait for so many bytes of copies as well.
__device__ inline void arrive_expecting(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ inline void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the barrier that lies at this address in the block of this rank. It tells that shared memory was read, by
// products that have ended; what this thread wrote is not ordered for other blocks, which would cost a fence.
__device__ inline void arrive_at(std::uint32_t barrier, std::uint32_t rank) {
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
__device__ inline void wait_for_phase(std::uint32_t barrier, std::uint32_t parity) {
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

// A place in a ring of stages that are filled and emptied by turns. parity is that of the phase in which the stage is
// filled.
template <int stages>
struct RingPlace {
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

// --- copies ----------------------------------------------------------------------------------------------------------

// Elements x, y, z are the box's first; what lies outside of the tensor comes as zeros, and counts as bytes.
struct BoxPlace {
  int x = 0, y = 0, z = 0;
};

__device__ inline void copy_box(std::uint32_t to, const CUtensorMap& map, BoxPlace at, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(&map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(barrier)
      : "memory");
}

// To the same place in the shared memory of every block of the mask, whose barriers at the same place get the bytes.
__device__ inline void copy_box_to(std::uint16_t blocks, std::uint32_t to, const CUtensorMap& map, BoxPlace at,
                                   std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(barrier), "h"(blocks)
      : "memory");
}

// A box out of shared memory, where it lies as copy_box() lays one down; what lies outside of the tensor is left out. A
// thread commits its copies, and waits for them.
__device__ inline void copy_box_out(const CUtensorMap& map, BoxPlace at, std::uint32_t from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(at.x), "r"(at.y), "r"(at.z), "r"(from)
               : "memory");
}
// The same, added to what is there: one rounding for each element, whatever the order.
__device__ inline void add_box_out(const CUtensorMap& map, BoxPlace at, std::uint32_t from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
      "r"(at.x), "r"(at.y), "r"(at.z), "r"(from)
      : "memory");
}
__device__ inline void commit_copies_out() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until shared memory was read and may be written again, but for the last so many commits.
template <int on_the_way = 0>
__device__ inline void wait_for_reads_of_copies_out() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(on_the_way) : "memory");
}
__device__ inline void wait_for_copies_out() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Bytes in a row, a multiple of 16 from and to multiples of 16.
__device__ inline void copy_bytes(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ inline void copy_bytes_out(void* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
               "r"(from), "r"(bytes)
               : "memory");
}
__device__ inline void add_floats_out(float* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
      "r"(from), "r"(bytes)
      : "memory");
}

// Brings bytes (a multiple of 16) into the second-level cache.
__device__ inline void prefetch_bytes(const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}

// Between copies out that have ended, or are to begin, and what this thread tells other blocks, or was told.
__device__ inline void order_global_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ inline int load_acquiring(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_releasing(int* to, int value) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// What this thread wrote to shared memory is seen by products and copies that come after the next barrier.
__device__ inline void publish_to_engines() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// 16 bytes of shared memory.
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

// Four matrices of 8 x 8 elements of 16 bits to shared memory, by a warp. Thread t has columns 2 (t % 4) and the next
// of row t / 4 of each; row t % 8 of matrix t / 8 goes to the address that it names.
__device__ inline void store_matrices(std::uint32_t to, const std::uint32_t (&two)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(two[0]), "r"(two[1]),
               "r"(two[2]), "r"(two[3])
               : "memory");
}

// --- roles -----------------------------------------------------------------------------------------------------------

// By all warps of a warpgroup: how many registers each thread has from here on.
template <int registers>
__device__ inline void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Waits for `threads` threads of the block at barrier `number` (0 is that of __syncthreads()).
template <int threads>
__device__ inline void sync_some(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(threads) : "memory");
}

// --- products --------------------------------------------------------------------------------------------------------

// An operand in shared memory in rows of 128 bytes, swizzled as the copy engine does it: eight rows are 1024 bytes, and
// it begins at a multiple of those (16 or 32 terms further inside a row, too). Rows are along the sum's dimension k, or
// each is a place of k, 64 elements wide, and the next 64 elements begin `apart` bytes further; the former has no such
// distance, and says 16.
__device__ inline std::uint64_t operand(std::uint32_t address, std::uint32_t apart) {
  constexpr std::uint64_t eight_rows = 1024 >> 4, swizzled_128 = 1;
  return std::uint64_t{(address & 0x3ffff) >> 4} | std::uint64_t{apart >> 4} << 16 | eight_rows << 32 |
         swizzled_128 << 62;
}

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most so many commits have products on the way.
template <int on_the_way>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(on_the_way) : "memory");
}

// Keeps the compiler from moving uses of the sums across this place.
template <int count>
__device__ inline void hold(float (&sum)[count]) {
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
#define TERA_PRODUCT(shape, type, names, a, b, add, trans_a, trans_b, ...)                                 \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " add ", 0;\n"                                       \
               "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names "}, " a ", " b        \
               ", adds, 1, 1, " trans_a ", " trans_b ";\n}"                                                 \
               : __VA_ARGS__ : "l"(left), "l"(right), "r"(add_to), "n"(left_along_m), "n"(right_along_n))
#define TERA_SUMS_32(i) TERA_SUMS_8(i), TERA_SUMS_8(i + 8), TERA_SUMS_8(i + 16), TERA_SUMS_8(i + 24)
#define TERA_PRODUCT_64(type) TERA_PRODUCT("m64n64k16", type, TERA_NAMES_32, "%32", "%33", "%34", "%35", "%36", \
                                           TERA_SUMS_32(0))
#define TERA_PRODUCT_OF_REGISTERS(shape, type, names, a0, a1, a2, a3, b, add, trans_b, ...)                      \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " add ", 0;\n"                                            \
               "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names "}, {" a0 ", " a1 ", " a2 ", " \
               a3 "}, " b ", adds, 1, 1, " trans_b ";\n}"                                                         \
               : __VA_ARGS__                                                                                     \
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(add_to), "n"(right_along_n))
#define TERA_PRODUCT_OF_REGISTERS_64(type) TERA_PRODUCT_OF_REGISTERS("m64n64k16", type, TERA_NAMES_32, "%32", "%33", \
                                               "%34", "%35", "%36", "%37", "%38", TERA_SUMS_32(0))
#define TERA_PRODUCT_OF_REGISTERS_128(type) TERA_PRODUCT_OF_REGISTERS("m64n128k16", type, TERA_NAMES_64, "%64", "%65", \
                                                "%66", "%67", "%68", "%69", "%70", TERA_SUMS_64(0))
#define TERA_PRODUCT_128(type) TERA_PRODUCT("m64n128k16", type, TERA_NAMES_64, "%64", "%65", "%66", "%67", "%68", \
                                            TERA_SUMS_64(0))
#define TERA_PRODUCT_256(type) TERA_PRODUCT("m64n256k16", type, TERA_NAMES_128, "%128", "%129", "%130", "%131", \
                                            "%132", TERA_SUMS_64(0), TERA_SUMS_64(64))
// clang-format on

// sum [64, n] (+)= left [64,16] right [16,n] with n = 64, 128 or 256, started by all four warps of a warpgroup. Thread
// t has rows r = 16 (t / 32) + t % 32 / 4 and r + 8, and columns c = 8 j + 2 (t % 4) and c + 1 of every eight: sums 4 j
// and 4 j + 1 are of row r, the next two of row r + 8. left_along_m, right_along_n: 0 where k lies along memory,
// else 1.
template <class T, int left_along_m, int right_along_n, int count>
__device__ inline void start_product(float (&sum)[count], std::uint64_t left, std::uint64_t right, int add_to) {
  constexpr bool bf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(count == 32 || count == 64 || count == 128);
  if constexpr (count == 32 && bf16)
    TERA_PRODUCT_64("bf16");
  else if constexpr (count == 32)
    TERA_PRODUCT_64("f16");
  else if constexpr (count == 64 && bf16)
    TERA_PRODUCT_128("bf16");
  else if constexpr (count == 64)
    TERA_PRODUCT_128("f16");
  else if constexpr (bf16)
    TERA_PRODUCT_256("bf16");
  else
    TERA_PRODUCT_256("f16");
}

// The same with n = 64 or 128 and left in registers, two elements in each: thread t has terms 2 (t % 4) and the next of
// rows r and r + 8, then terms 8 further of both, as it has them of sums.
template <class T, int right_along_n, int count>
__device__ inline void start_product(float (&sum)[count], const std::uint32_t* left, std::uint64_t right, int add_to) {
  constexpr bool bf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(count == 32 || count == 64);
  if constexpr (count == 32 && bf16)
    TERA_PRODUCT_OF_REGISTERS_64("bf16");
  else if constexpr (count == 32)
    TERA_PRODUCT_OF_REGISTERS_64("f16");
  else if constexpr (bf16)
    TERA_PRODUCT_OF_REGISTERS_128("bf16");
  else
    TERA_PRODUCT_OF_REGISTERS_128("f16");
}

#undef TERA_NAMES_32
#undef TERA_NAMES_64
#undef TERA_NAMES_128
#undef TERA_SUMS_8
#undef TERA_SUMS_64
#undef TERA_PRODUCT
#undef TERA_SUMS_32
#undef TERA_PRODUCT_64
#undef TERA_PRODUCT_OF_REGISTERS
#undef TERA_PRODUCT_OF_REGISTERS_64
#undef TERA_PRODUCT_OF_REGISTERS_128
#undef TERA_PRODUCT_128
#undef TERA_PRODUCT_256

}  // namespace tera::cuda::kernels::hopper
