#pragma once
// RoPE in a config.json, as transformers 4 and 5 write it.

#include "tera/config/sections/model.h"
#include "tera/hf/config/hf_json.h"

namespace tera {

// Sets the base, which is the family's default where it is absent, and the scaling; requires that
// model.max_position_embeddings has been read.
void read_hf_rope(const HfFields& config, ModelConfig& model);

// Writes rope_theta and rope_scaling, which transformers 4 and other programs read, and rope_parameters of
// transformers 5.
void write_hf_rope(const ModelConfig& model, HfJson& config);

// Adds the keys of transformers 4 to a file that has only rope_parameters.
void add_older_hf_rope(const ModelConfig& model, HfJson& config);

}  // namespace tera
