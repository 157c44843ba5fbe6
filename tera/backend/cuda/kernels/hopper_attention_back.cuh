#pragma once
// The backward of causal attention by Hopper's copy engine and warpgroups. The same bits every time: sums that several
// blocks add to are added to in a fixed order.

#include "tera/backend/cuda/kernels/attention.cuh"

namespace tera::cuda::kernels {

// Whether the GPU in use and the program have this, for a call that fits_hopper() says it fits: that is the one list of
// conditions on shapes.
bool hopper_attention_back_takes(const AttentionBackParams& params);

// workspace: as hopper_attention_space() says.
cudaError_t launch_hopper_attention_back(const AttentionBackParams& params, void* workspace, cudaStream_t stream);

}  // namespace tera::cuda::kernels
