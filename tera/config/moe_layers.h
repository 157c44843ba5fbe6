#pragma once
// Which layers are MoE layers, to and from the keys of model.moe.

#include <cstdint>
#include <vector>

#include "tera/config/sections/moe.h"

namespace tera {

// [L]
std::vector<bool> moe_layers(const MoeConfig& moe, std::int64_t num_layers);

// Sets the keys to a canonical form, which uses decoder_sparse_step and mlp_only_layers alone.
void set_moe_layers(MoeConfig& moe, const std::vector<bool>& layers);

}  // namespace tera
