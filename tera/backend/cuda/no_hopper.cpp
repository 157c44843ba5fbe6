// Stands in for kernels/hopper/*.cu where the program is not built for Hopper.
#include "tera/backend/cuda/kernels/hopper/hopper_attention_back.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_gated_gemm.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_grouped_gemm.cuh"

namespace tera::cuda::kernels {

bool hopper_grouped_gemm_supports(const HopperGroupedGemm&) { return false; }
cudaError_t launch_hopper_grouped_gemm(const HopperGroupedGemm&, cudaStream_t) { return cudaErrorNotSupported; }

bool hopper_gated_gemm_supports(const HopperGatedGemm&) { return false; }
bool hopper_gated_gemm_supports(const HopperGatedGemmBack&) { return false; }
cudaError_t launch_hopper_gated_gemm(const HopperGatedGemm&, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t launch_hopper_gated_gemm(const HopperGatedGemmBack&, cudaStream_t) { return cudaErrorNotSupported; }

bool hopper_attention_back_supports(const AttentionBackParams&) { return false; }
cudaError_t launch_hopper_attention_back(const AttentionBackParams&, void*, cudaStream_t) {
  return cudaErrorNotSupported;
}

}  // namespace tera::cuda::kernels
