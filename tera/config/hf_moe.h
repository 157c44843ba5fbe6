#pragma once
// Experts in a config.json, both ways.

#include "tera/config/hf_json.h"
#include "tera/config/model.h"

namespace tera {

struct ModelShape;

// Sizes that are not of experts are there.
void read_hf_moe(const HfFields& config, ModelConfig& model);
void write_hf_moe(const ModelConfig& model, HfJson& config);

// num_experts of a qwen3_moe, for transformers 4, where a file has only the name that 5 gives it.
void add_older_hf_moe(const ModelConfig& model, HfJson& config);

// As a section that leaves nothing open, and says one thing in one way.
MoeConfig whole_moe(const ModelShape& shape);

}  // namespace tera
