#pragma once
// Mixture of experts in a config.json, read and written.

#include "tera/config/sections/model.h"
#include "tera/hf/config/hf_json.h"

namespace tera {

struct ModelShape;

// Requires that sizes other than those of experts have been read.
void read_hf_moe(const HfFields& config, ModelConfig& model);
void write_hf_moe(const ModelConfig& model, HfJson& config);

// Adds num_experts of a qwen3_moe, for transformers 4, to a file that has only the name of transformers 5.
void add_older_hf_moe(const ModelConfig& model, HfJson& config);

// The section with all values filled in, in canonical form.
MoeConfig moe_section(const ModelShape& shape);

}  // namespace tera
