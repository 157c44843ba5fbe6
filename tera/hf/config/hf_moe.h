#pragma once
// Mixture of experts in a config.json, read and written.

#include "tera/config/sections/model.h"
#include "tera/hf/config/hf_json.h"

namespace tera {

struct ModelShape;

// Number and choice of experts, and the balancing loss. experts_key: the family's name of the number of experts; both
// are read.
void read_hf_moe(const HfFields& config, ModelConfig& model);
void write_hf_moe(const ModelConfig& model, const char* experts_key, HfJson& config);

// Which layers have experts, by decoder_sparse_step and mlp_only_layers.
void read_hf_sparse_layers(const HfFields& config, ModelConfig& model);

// The section with all values filled in, in canonical form.
MoeConfig moe_section(const ModelShape& shape);

}  // namespace tera
