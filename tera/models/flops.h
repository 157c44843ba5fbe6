#pragma once
// Model FLOPs, from which utilization (MFU) is computed.

#include <cstdint>

#include "tera/config/setup.h"

namespace tera {

// Model FLOPs per token, forward and backward: 6 per parameter of a GEMM (the output head counts, the embedding table
// does not) and 6 * L * S * heads * head_dim for causal attention, where head_dim is the mean of the dimensions of
// scores and values. An MTP layer counts as in Megatron-LM: the layer, another head, its projection, and 3 values a
// channel for its norms.
double model_flops_per_token(const ModelShape& model, std::int64_t seq_length);

}  // namespace tera
