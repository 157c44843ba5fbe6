#pragma once
// RoPE in a config.json, as transformers 4 and 5 write it.

#include "tera/config/hf_json.h"
#include "tera/config/model.h"

namespace tera {

// Sets the base and the scaling; model.max_position_embeddings is known.
void read_hf_rope(const HfFields& config, ModelConfig& model);

// rope_theta and rope_scaling, as transformers 4 and all others read them, and rope_parameters of transformers 5.
void write_hf_rope(const ModelConfig& model, HfJson& config);

// Of a file that has rope_parameters alone.
void add_older_hf_rope(const ModelConfig& model, HfJson& config);

}  // namespace tera
