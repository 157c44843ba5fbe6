// Stands in for kernels/hopper_grouped_gemm.cu where the program is not built for Hopper.
#include "tera/backend/cuda/kernels/hopper_grouped_gemm.cuh"

namespace tera::cuda::kernels {

bool hopper_grouped_gemm_takes(const HopperGroupedGemm&) { return false; }
cudaError_t launch_hopper_grouped_gemm(const HopperGroupedGemm&, cudaStream_t) { return cudaErrorNotSupported; }

}  // namespace tera::cuda::kernels
