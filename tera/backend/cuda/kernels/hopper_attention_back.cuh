#pragma once
// The backward of causal attention by Hopper's copy engine and warpgroups. The same bits every time: sums that several
// blocks add to are added to in a fixed order.

#include "tera/backend/cuda/kernels/attention.cuh"

namespace tera::cuda::kernels {

// Whether the GPU in use and the program have this, and the call fits it: 16-bit types, heads of 64 or 128 channels,
// causal, sequences of equal length, each with as many queries as keys, no window, dropout, positions or offsets.
bool hopper_attention_back_takes(const AttentionBackParams& params);

// workspace: as hopper_attention_space() says.
cudaError_t launch_hopper_attention_back(const AttentionBackParams& params, void* workspace, cudaStream_t stream);

}  // namespace tera::cuda::kernels
