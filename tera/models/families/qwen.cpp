// Qwen2: Llama with biases on q, k and v. Qwen3: norms on the heads of q and k instead, and heads of 128 channels.

#include "tera/hf/config/hf_decoder.h"
#include "tera/hf/config/hf_window.h"
#include "tera/models/families/families.h"

namespace tera::qwen {
namespace {

constexpr HfSizes sizes{
    .vocab = 151936, .hidden = 4096, .ffn = 22016, .layers = 32, .heads = 32, .kv_heads = 32, .positions = 32768};
constexpr HfDecoder qwen2_keys{.sizes = sizes, .writes_head_dim = false};
constexpr HfDecoder qwen3_keys{.sizes = sizes, .head_dim = 128, .attention_bias = true};

void set_qwen2_defaults(ModelConfig& model) {
  set_llama_defaults(model);
  model.layernorm_epsilon = 1e-6;
  model.add_qkv_bias = true;
}

void set_qwen3_defaults(ModelConfig& model) {
  set_llama_defaults(model);
  model.layernorm_epsilon = 1e-6;
  model.qk_layernorm = true;
  model.kv_channels = 128;
}

// sliding_window counts only where use_sliding_window is true.
void read_windows(const HfFields& config, ModelConfig& model) {
  const std::int64_t window = read_hf_window(config, config.flag("use_sliding_window").value_or(false), 4096);
  const std::int64_t full_layers = config.integer("max_window_layers").value_or(28);
  set_window(model, read_hf_windows(config, model, window, full_layers));
}

void write_windows(const ModelConfig& model, HfJson& config) {
  const bool used = model.window_size > 0;
  write_hf_window(model, config);
  if (!model.layer_types.empty()) config["layer_types"] = model.layer_types;
  config["use_sliding_window"] = used;
  config["max_window_layers"] = used && model.layer_types.empty() ? model.max_window_layers : model.num_layers;
}

void read_qwen2(const HfFields& config, ModelConfig& model) {
  read_hf_decoder(config, qwen2_keys, model);
  read_windows(config, model);
}

void write_qwen2(const ModelConfig& model, HfJson& config) {
  write_hf_decoder(model, qwen2_keys, config);
  write_windows(model, config);
}

void read_qwen3(const HfFields& config, ModelConfig& model) {
  read_hf_decoder(config, qwen3_keys, model);
  read_windows(config, model);
}

void write_qwen3(const ModelConfig& model, HfJson& config) {
  write_hf_decoder(model, qwen3_keys, config);
  write_windows(model, config);
}

}  // namespace

extern const ModelFamily qwen2{.name = "qwen2",
                               .hf_type = "qwen2",
                               .hf_class = "Qwen2ForCausalLM",
                               .hf_since = "4.46.0",
                               .defaults = set_qwen2_defaults,
                               .read_hf = read_qwen2,
                               .write_hf = write_qwen2,
                               .finish_hf = finish_hf_rope,
                               .names = llama_names,
                               .make_spec = make_decoder_spec};

extern const ModelFamily qwen3{.name = "qwen3",
                               .hf_type = "qwen3",
                               .hf_class = "Qwen3ForCausalLM",
                               .hf_since = "4.51.0",
                               .defaults = set_qwen3_defaults,
                               .read_hf = read_qwen3,
                               .write_hf = write_qwen3,
                               .finish_hf = finish_hf_rope,
                               .names = llama_names,
                               .make_spec = make_decoder_spec};

}  // namespace tera::qwen
