#include "tera/hf/config/hf_decoder.h"

#include <algorithm>
#include <array>
#include <string>

#include "tera/base/error.h"
#include "tera/config/family.h"
#include "tera/hf/config/hf_rope.h"

namespace tera {
namespace {

struct ActivationName {
  std::string_view name;
  Activation plain, gated;
};
constexpr std::array activation_names{
    ActivationName{"silu", Activation::silu, Activation::swiglu},
    ActivationName{"swish", Activation::silu, Activation::swiglu},
    ActivationName{"gelu", Activation::gelu, Activation::geglu},
    ActivationName{"gelu_new", Activation::gelu_tanh, Activation::geglu_tanh},
    ActivationName{"gelu_pytorch_tanh", Activation::gelu_tanh, Activation::geglu_tanh}};

void read_head_dim(const HfFields& config, const HfDecoder& keys, ModelConfig& model) {
  if (!config.is_null("head_dim") && (config.has("head_dim") || keys.head_dim > 0)) {
    model.kv_channels = config.size({"head_dim"}, keys.head_dim);
  } else {
    require_user(model.hidden_size % model.num_attention_heads == 0,
                 "{}hidden_size {} is no multiple of num_attention_heads {}, and head_dim is not given", config.where(),
                 model.hidden_size, model.num_attention_heads);
    model.kv_channels = model.hidden_size / model.num_attention_heads;
  }
  require_user(model.kv_channels % 2 == 0, "{}head_dim is {}, and should be even: RoPE turns pairs of channels",
               config.where(), model.kv_channels);
}

void read_heads(const HfFields& config, const HfDecoder& keys, ModelConfig& model) {
  const HfSizes& sizes = keys.sizes;
  const std::int64_t heads = model.num_attention_heads = config.size({"num_attention_heads"}, sizes.heads);
  const bool all = config.is_null("num_key_value_heads") || (!config.has("num_key_value_heads") && sizes.kv_heads == 0);
  const std::int64_t groups = model.num_query_groups =
      all ? heads : config.size({"num_key_value_heads"}, sizes.kv_heads);
  require_user(heads % groups == 0, "{}num_key_value_heads {}{} does not divide num_attention_heads, which is {}",
               config.where(), groups, config.has("num_key_value_heads") ? "" : " (its default)", heads);
  if (!keys.latent_heads) return read_head_dim(config, keys, model);
  require_user(heads == groups, "{}num_key_value_heads is {}, and should be num_attention_heads, which is {}",
               config.where(), groups, heads);
}

}  // namespace

void read_hf_decoder(const HfFields& config, const HfDecoder& keys, ModelConfig& model) {
  const HfSizes& sizes = keys.sizes;
  model.vocab_size = config.size({"vocab_size"}, sizes.vocab);
  model.hidden_size = config.size({"hidden_size"}, sizes.hidden);
  model.num_layers = config.size({"num_hidden_layers"}, sizes.layers);
  model.ffn_hidden_size = config.size({"intermediate_size"}, sizes.ffn);
  model.max_position_embeddings = config.size({"max_position_embeddings"}, sizes.positions);
  require_user(model.num_layers <= 100'000, "{}num_hidden_layers is {}, and should be at most 100000", config.where(),
               model.num_layers);
  read_heads(config, keys, model);
  model.layernorm_epsilon = config.number("rms_norm_eps").value_or(keys.eps);
  model.activation = read_hf_activation(config, "hidden_act", "silu", true);
  model.attention_dropout = config.number("attention_dropout").value_or(0);
  if (keys.attention_bias)
    model.add_qkv_bias = model.add_attention_output_bias = config.flag("attention_bias").value_or(false);
  if (keys.mlp_bias) model.add_mlp_bias = config.flag("mlp_bias").value_or(false);
  read_hf_rope(config, model);
}

void write_hf_decoder(const ModelConfig& model, const HfDecoder& keys, HfJson& config) {
  config["vocab_size"] = model.vocab_size;
  config["hidden_size"] = model.hidden_size;
  config["intermediate_size"] = model.ffn_hidden_size;
  config["num_hidden_layers"] = model.num_layers;
  config["num_attention_heads"] = model.num_attention_heads;
  config["num_key_value_heads"] = model.num_query_groups;
  if (keys.writes_head_dim) config["head_dim"] = model.kv_channels;
  config["max_position_embeddings"] = model.max_position_embeddings;
  config["hidden_act"] = std::string(hf_activation(model.activation));
  config["rms_norm_eps"] = model.layernorm_epsilon;
  config["attention_dropout"] = model.attention_dropout;
  if (keys.attention_bias) config["attention_bias"] = model.add_qkv_bias;
  if (keys.mlp_bias) config["mlp_bias"] = model.add_mlp_bias;
  write_hf_rope(model, config);
}

Activation read_hf_activation(const HfFields& config, const char* key, std::string_view absent, bool gated) {
  const std::string name = config.text(key).value_or(std::string(absent));
  const auto known = std::ranges::find(activation_names, name, &ActivationName::name);
  if (known == activation_names.end()) config.refuse(key, "silu, gelu, gelu_new and gelu_pytorch_tanh are");
  return gated ? known->gated : known->plain;
}

std::string_view hf_activation(Activation activation) {
  switch (activation) {
    case Activation::silu:
    case Activation::swiglu: return "silu";
    case Activation::gelu:
    case Activation::geglu: return "gelu";
    case Activation::gelu_tanh: return "gelu_new";
    case Activation::geglu_tanh: return "gelu_pytorch_tanh";
    case Activation::squared_relu: break;
  }
  fail_user("model.activation={}: no config.json has a name for it", name_of(activation));
}

void refuse_hf_flag(const HfFields& config, const char* key, bool supported) {
  if (config.flag(key).value_or(supported) != supported) config.refuse(key, supported ? "true is" : "false is");
}

std::vector<std::int64_t> read_hf_windows(const HfFields& config, const ModelConfig& model, std::int64_t window,
                                          std::int64_t full_layers) {
  std::vector<std::int64_t> windows(static_cast<std::size_t>(model.num_layers), window);
  const auto full = std::clamp<std::int64_t>(full_layers, 0, model.num_layers);
  const auto types = config.texts("layer_types");
  if (!types) {
    std::fill(windows.begin(), windows.begin() + full, 0);
    return windows;
  }
  require_user(types->size() == windows.size(), "{}layer_types has {} entries for {} layers", config.where(),
               types->size(), windows.size());
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const std::string& type = (*types)[i];
    if (type != "full_attention" && type != "sliding_attention")
      config.refuse("layer_types", "full_attention and sliding_attention are");
    if (type == "full_attention") windows[i] = 0;
  }
  return windows;
}

std::int64_t read_hf_window(const HfFields& config, bool used, std::int64_t absent) {
  return !used || config.is_null("sliding_window") ? 0 : config.size({"sliding_window"}, absent);
}

void write_hf_window(const ModelConfig& model, HfJson& config) {
  config["sliding_window"] = model.window_size > 0 ? HfJson(model.window_size) : HfJson(nullptr);
}

void check_hf_equal_windows(const ModelConfig& model) {
  const std::string_view type = model.arch->hf_type;
  if (model.max_window_layers > 0) fail_user("model.max_window_layers: a {} has the window in every layer", type);
  if (!model.layer_types.empty()) fail_user("model.layer_types: a {} has the window in every layer, or in none", type);
}

}  // namespace tera
