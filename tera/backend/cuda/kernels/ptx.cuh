#pragma once
// The PTX instructions that kernels use, but for wgmma, TMA and mbarriers (hopper.cuh). Kernels have no other inline
// assembly, so that a build for the CPU replaces this one header (tools/cuda_on_cpu).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#ifdef __CUDACC__
namespace tera::cuda::kernels::ptx {

// 2^x within 2 ulp; arguments and results below the normal range count as 0.
__device__ inline float ex2_approx_ftz(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1/x within 1 ulp; arguments and results below the normal range count as 0.
__device__ inline float rcp_approx_ftz(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 16 bytes to device memory; the address is a multiple of 16.
__device__ inline void st_global_v4(void* to, const uint4& words) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts a copy of 16 bytes from device to shared memory; both addresses are multiples of 16.
__device__ inline void cp_async_16(void* to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(shared_address(to_shared)), "l"(from) : "memory");
}
// Starts a copy of 16 bytes with an L2 prefetch of the 128 bytes around them.
__device__ inline void cp_async_16_prefetch_128(void* to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to_shared)), "l"(from)
               : "memory");
}
// Starts a copy of 16 bytes, of zeros where the source does not exist; `from` must be a valid address all the same.
__device__ inline void cp_async_16_or_zeros(void* to_shared, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}
// The copies that this thread started since its last group become a group, perhaps an empty one.
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Returns when at most `pending` of this thread's groups are in flight.
template <int pending>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Waits at one of the block's 16 named barriers (__syncthreads is 0) for `threads` threads.
__device__ inline void bar_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}

// Loads four 8 x 8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void ldmatrix_x4(std::uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(std::uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// d[16, 8] += a[16, 16] * b[16, 8], fp32 sums of 16-bit products, over a warp. The last argument names the type.
__device__ inline void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                                    __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                                    __half) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tera::cuda::kernels::ptx
#endif
