#pragma once
// What config.json of most decoders has in common: Llama's keys, and how a family's differ. Families read and write
// these first, then what is theirs alone.

#include <cstdint>
#include <string_view>
#include <vector>

#include "tera/config/sections/model.h"
#include "tera/hf/config/hf_json.h"

namespace tera {

// Default sizes of transformers, for keys that a config.json lacks. kv_heads 0: as many as heads.
struct HfSizes {
  std::int64_t vocab, hidden, ffn, layers, heads, kv_heads, positions;
};

struct HfDecoder {
  HfSizes sizes;
  double eps = 1e-6;          // rms_norm_eps where it is absent
  std::int64_t head_dim = 0;  // where it is absent; 0: hidden_size / num_attention_heads
  bool writes_head_dim = true;
  bool latent_heads = false;    // MLA, whose heads have sizes of their own
  bool attention_bias = false;  // files have the key, for q, k, v and the output projection
  bool mlp_bias = false;        // files have the key
};

void read_hf_decoder(const HfFields& config, const HfDecoder& keys, ModelConfig& model);
void write_hf_decoder(const ModelConfig& model, const HfDecoder& keys, HfJson& config);

Activation read_hf_activation(const HfFields& config, const char* key, std::string_view absent, bool gated);
std::string_view hf_activation(Activation activation);  // UserError where config.json has no name for it

// UserError unless the flag is absent or as supported.
void refuse_hf_flag(const HfFields& config, const char* key, bool supported);

// Sliding window of each layer: `window`, but for layers that layer_types says are full, or without it the first
// full_layers.
std::vector<std::int64_t> read_hf_windows(const HfFields& config, const ModelConfig& model, std::int64_t window,
                                          std::int64_t full_layers);
// The value of sliding_window: 0 where it is null or not used.
std::int64_t read_hf_window(const HfFields& config, bool used, std::int64_t absent);
// sliding_window of a family that has it in every layer or in none; UserError where the model differs in its layers.
void write_hf_window(const ModelConfig& model, HfJson& config);
void check_hf_equal_windows(const ModelConfig& model);

}  // namespace tera
