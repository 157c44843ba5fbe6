#pragma once
// Latent attention and its experts in the config.json of a DeepSeek, both ways.

#include "tera/config/hf_json.h"
#include "tera/config/model.h"

namespace tera {

struct ModelShape;

// Sizes that are not of heads, and RoPE, are there; its scaling moves to the keys of model.mla.
void read_hf_mla(const HfFields& config, ModelConfig& model);
void write_hf_mla(const ModelConfig& model, HfJson& config);

void read_deepseek_moe(const HfFields& config, ModelConfig& model);
void write_deepseek_moe(const ModelConfig& model, HfJson& config);

// As a section that leaves nothing open, and says one thing in one way.
MlaConfig whole_mla(const ModelShape& shape);

}  // namespace tera
