#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// A GEMM with SwiGLU fused into its epilogue, by TMA and wgmma; rows of all tensors are dense, sums are fp32. What is
// rounded is what two kernels would round: the gates and ups, the gradient of act.

// x = a b^T, act = silu(gate) * up of x = [gate | up]: a [R,K], b [2F,K], x [R,2F], act [R,F].
struct HopperGatedGemm {
  const void *a = nullptr, *b = nullptr;
  void *x = nullptr, *act = nullptr;
  std::int64_t rows = 0, width = 0, k = 0;  // R, F, K
  Scalar type = Scalar::bf16;
};

// dx = [dgate | dup] of dact = a b and of x: a [R,K], b [K,F], x and dx [R,2F]; dx may be x.
struct HopperGatedGemmBack {
  const void *a = nullptr, *b = nullptr, *x = nullptr;
  void* dx = nullptr;
  std::int64_t rows = 0, width = 0, k = 0;
  Scalar type = Scalar::bf16;
};

// Whether the GPU in use and the program have this kernel, and it supports the call: 16-bit tensors that begin at
// multiples of 16 bytes, rows of multiples of 16 bytes.
bool hopper_gated_gemm_supports(const HopperGatedGemm& args);
bool hopper_gated_gemm_supports(const HopperGatedGemmBack& args);

cudaError_t launch_hopper_gated_gemm(const HopperGatedGemm& args, cudaStream_t stream);
cudaError_t launch_hopper_gated_gemm(const HopperGatedGemmBack& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
