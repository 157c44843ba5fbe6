#pragma once
// Flash attention's backward for causal masks with TMA and wgmma. Deterministic: sums that several blocks add to are
// added to in a fixed order.

#include "tera/backend/cuda/kernels/attention/attention.cuh"

namespace tera::cuda::kernels {

// Whether the GPU in use and the program have this kernel, for a call that hopper_supports() accepts: that is the one
// list of conditions on shapes.
bool hopper_attention_back_supports(const AttentionBackParams& params);

// workspace: as hopper_attention_space() says.
cudaError_t launch_hopper_attention_back(const AttentionBackParams& params, void* workspace, cudaStream_t stream);

}  // namespace tera::cuda::kernels
