#pragma once
// What several families share. Each family is a namespace of its own with a ModelFamily in it
// (tera/models/registry.cpp).

#include "tera/config/family.h"
#include "tera/config/sections/model.h"
#include "tera/models/family_names.h"
#include "tera/models/spec.h"

namespace tera {

// RMSNorm, RoPE, SwiGLU, no biases, a head of its own.
void set_llama_defaults(ModelConfig& model);
FamilyNames llama_names();
// Llama's, with experts as in Qwen3-MoE: mlp.experts.0.gate_proj.
FamilyNames mlp_experts_names();
// Adds the keys of transformers 4 to a config.json that has only those of 5.
void finish_hf_rope(const ModelConfig& model, nlohmann::ordered_json& config);

}  // namespace tera
