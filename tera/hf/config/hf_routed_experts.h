#pragma once
// Mixture of experts with DeepSeek's keys of config.json (n_routed_experts, n_shared_experts, first_k_dense_replace),
// read and written.

#include "tera/config/sections/model.h"
#include "tera/hf/config/hf_json.h"

namespace tera {

// What transformers takes where a key is absent, and which router the family has.
struct HfRoutedExperts {
  bool sigmoid = false;  // sigmoid scores with a bias for the choice (noaux_tc); else softmax
  std::int64_t ffn = 0;  // moe_intermediate_size
  std::int64_t shared = 0, dense_layers = 0;
  std::int64_t groups = 0, chosen_groups = 0;
  double scaling = 1;
};

// Requires that sizes other than those of experts have been read.
void read_hf_routed_experts(const HfFields& config, const HfRoutedExperts& keys, ModelConfig& model);
void write_hf_routed_experts(const ModelConfig& model, const HfRoutedExperts& keys, HfJson& config);

}  // namespace tera
