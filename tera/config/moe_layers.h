#pragma once
// Which layers have experts, in the keys of model.moe.

#include <cstdint>
#include <vector>

#include "tera/config/moe.h"

namespace tera {

// [L]
std::vector<bool> moe_layers(const MoeConfig& moe, std::int64_t num_layers);

// The keys that say so, in one way only, by decoder_sparse_step and mlp_only_layers.
void set_moe_layers(MoeConfig& moe, const std::vector<bool>& layers);

}  // namespace tera
