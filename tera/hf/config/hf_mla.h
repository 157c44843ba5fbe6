#pragma once
// Multi-head latent attention (MLA) in a config.json, read and written.

#include "tera/config/sections/model.h"
#include "tera/hf/config/hf_json.h"

namespace tera {

struct ModelShape;

// Requires that sizes other than those of heads, and RoPE, have been read; moves RoPE scaling to the keys of model.mla.
void read_hf_mla(const HfFields& config, ModelConfig& model);
void write_hf_mla(const ModelConfig& model, HfJson& config);

// The section with all values filled in, in canonical form.
MlaConfig mla_section(const ModelShape& shape);

}  // namespace tera
