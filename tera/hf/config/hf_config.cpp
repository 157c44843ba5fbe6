#include "tera/hf/config/hf_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/config/arch_defaults.h"
#include "tera/hf/config/hf_json.h"
#include "tera/hf/config/hf_limits.h"
#include "tera/hf/config/hf_mla.h"
#include "tera/hf/config/hf_moe.h"
#include "tera/hf/config/hf_quantization.h"
#include "tera/hf/config/hf_rope.h"
#include "tera/hf/config/hf_window.h"

namespace tera {
namespace {

constexpr std::size_t max_config_bytes = std::size_t{16} << 20;

struct ModelType {
  std::string_view name;
  Arch arch;
};
constexpr std::array model_types{ModelType{"gpt2", Arch::gpt},
                                 ModelType{"llama", Arch::llama},
                                 ModelType{"mistral", Arch::mistral},
                                 ModelType{"mixtral", Arch::mixtral},
                                 ModelType{"deepseek_v2", Arch::deepseek_v2},
                                 ModelType{"deepseek_v3", Arch::deepseek_v3},
                                 ModelType{"qwen2", Arch::qwen2},
                                 ModelType{"qwen3", Arch::qwen3},
                                 ModelType{"qwen3_moe", Arch::qwen3_moe}};

Arch read_arch(const HfFields& config) {
  const auto type = config.text("model_type");
  require_user(type.has_value(), "{}model_type is missing", config.where());
  const auto known = std::ranges::find(model_types, *type, &ModelType::name);
  if (known == model_types.end())
    config.refuse("model_type",
                  "deepseek_v2, deepseek_v3, gpt2, llama, mistral, mixtral, qwen2, qwen3 and qwen3_moe are");
  return known->arch;
}

void refuse_flag(const HfFields& config, const char* key, bool supported) {
  if (config.flag(key).value_or(supported) != supported) config.refuse(key, supported ? "true is" : "false is");
}

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

Activation read_activation(const HfFields& config, const char* key, std::string_view absent, bool gated) {
  const std::string name = config.text(key).value_or(std::string(absent));
  const auto known = std::ranges::find(activation_names, name, &ActivationName::name);
  if (known == activation_names.end()) config.refuse(key, "silu, gelu, gelu_new and gelu_pytorch_tanh are");
  return gated ? known->gated : known->plain;
}

// Default sizes of transformers, for keys that a config.json lacks. kv_heads 0: as many as heads.
struct DefaultSizes {
  std::int64_t vocab, hidden, ffn, layers, heads, kv_heads, positions;
};
DefaultSizes default_sizes(Arch arch) {
  switch (arch) {
    case Arch::deepseek_v2: return {102400, 4096, 11008, 32, 32, 0, 2048};
    case Arch::deepseek_v3: return {129280, 7168, 18432, 61, 128, 0, 4096};
    case Arch::gpt: return {50257, 768, 3072, 12, 12, 12, 1024};
    case Arch::llama: return {32000, 4096, 11008, 32, 32, 0, 2048};
    case Arch::mistral:
    case Arch::mixtral: return {32000, 4096, 14336, 32, 32, 8, 131072};
    case Arch::qwen2:
    case Arch::qwen3: return {151936, 4096, 22016, 32, 32, 32, 32768};
    case Arch::qwen3_moe: return {151936, 2048, 6144, 24, 32, 4, 32768};
  }
  fail("architecture {} has no usual sizes", name_of(arch));
}

// Embeddings and residual branches have one dropout rate here; it is a default that a run may change.
void read_gpt2(const HfFields& config, ModelConfig& model) {
  const DefaultSizes defaults = default_sizes(Arch::gpt);
  model.hidden_size = config.size({"n_embd", "hidden_size"}, defaults.hidden);
  model.num_layers = config.size({"n_layer", "num_hidden_layers"}, defaults.layers);
  model.num_attention_heads = model.num_query_groups = config.size({"n_head", "num_attention_heads"}, defaults.heads);
  model.max_position_embeddings = config.size({"n_positions", "max_position_embeddings"}, defaults.positions);
  const std::int64_t wide = 4 * model.hidden_size;
  model.ffn_hidden_size = config.is_null("n_inner") ? wide : config.size({"n_inner"}, wide);
  model.layernorm_epsilon = config.number("layer_norm_epsilon").value_or(1e-5);
  model.activation = read_activation(config, "activation_function", "gelu_new", false);
  model.hidden_dropout = config.number("resid_pdrop").value_or(0.1);
  model.attention_dropout = config.number("attn_pdrop").value_or(0.1);
  refuse_flag(config, "scale_attn_weights", true);
  refuse_flag(config, "scale_attn_by_inverse_layer_idx", false);
  const std::int64_t heads = model.num_attention_heads;
  require_user(model.hidden_size % heads == 0, "{}n_embd {} is no multiple of n_head {}", config.where(),
               model.hidden_size, heads);
  model.kv_channels = model.hidden_size / heads;
}

// Sliding window of each layer. layer_types decides if the file has it: AutoModel loads such a mistral as a Ministral.
std::vector<std::int64_t> layer_windows(const HfFields& config, const ModelConfig& model, std::int64_t window,
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

// MoE families: all layers have the sliding window, or none; other keys are ignored.
void read_window_of_moe(const HfFields& config, Arch arch, ModelConfig& model) {
  const bool used = arch == Arch::mixtral || config.flag("use_sliding_window").value_or(false);
  const std::int64_t default_window = arch == Arch::mixtral ? 0 : 4096;
  model.window_size = !used || config.is_null("sliding_window") ? 0 : config.size({"sliding_window"}, default_window);
}

void read_window(const HfFields& config, Arch arch, ModelConfig& model) {
  if (is_deepseek(arch)) return;
  if (has_experts(arch)) return read_window_of_moe(config, arch, model);
  constexpr std::int64_t default_window = 4096, default_full_layers = 28;
  const bool qwen = arch == Arch::qwen2 || arch == Arch::qwen3;
  // Qwen families ignore sliding_window unless use_sliding_window is true.
  const bool used = arch == Arch::mistral || (qwen && config.flag("use_sliding_window").value_or(false));
  const std::int64_t window =
      !used || config.is_null("sliding_window") ? 0 : config.size({"sliding_window"}, default_window);
  const std::int64_t full_layers = qwen ? config.integer("max_window_layers").value_or(default_full_layers) : 0;
  set_window(model, layer_windows(config, model, window, full_layers));
}

void read_heads(const HfFields& config, Arch arch, ModelConfig& model) {
  const DefaultSizes defaults = default_sizes(arch);
  const std::int64_t heads = model.num_attention_heads = config.size({"num_attention_heads"}, defaults.heads);
  const bool all =
      config.is_null("num_key_value_heads") || (!config.has("num_key_value_heads") && defaults.kv_heads == 0);
  const std::int64_t groups = model.num_query_groups =
      all ? heads : config.size({"num_key_value_heads"}, defaults.kv_heads);
  require_user(heads % groups == 0, "{}num_key_value_heads {}{} does not divide num_attention_heads, which is {}",
               config.where(), groups, config.has("num_key_value_heads") ? "" : " (its default)", heads);
  if (is_deepseek(arch)) {
    require_user(heads == groups, "{}num_key_value_heads is {}, and should be num_attention_heads, which is {}",
                 config.where(), groups, heads);
    return;
  }
  constexpr std::int64_t qwen3_head = 128;
  if (!config.is_null("head_dim") && (config.has("head_dim") || arch == Arch::qwen3)) {
    model.kv_channels = config.size({"head_dim"}, qwen3_head);
  } else {
    require_user(model.hidden_size % heads == 0,
                 "{}hidden_size {} is no multiple of num_attention_heads {}, and head_dim is not given", config.where(),
                 model.hidden_size, heads);
    model.kv_channels = model.hidden_size / heads;
  }
  require_user(model.kv_channels % 2 == 0, "{}head_dim is {}, and should be even: RoPE turns pairs of channels",
               config.where(), model.kv_channels);
}

// Whether config.json of the family has the key attention_bias.
bool has_bias_key(Arch arch) {
  return arch == Arch::llama || arch == Arch::qwen3 || arch == Arch::qwen3_moe || is_deepseek(arch);
}

void read_llama_like(const HfFields& config, Arch arch, ModelConfig& model) {
  const DefaultSizes defaults = default_sizes(arch);
  model.hidden_size = config.size({"hidden_size"}, defaults.hidden);
  model.num_layers = config.size({"num_hidden_layers"}, defaults.layers);
  model.ffn_hidden_size = config.size({"intermediate_size"}, defaults.ffn);
  model.max_position_embeddings = config.size({"max_position_embeddings"}, defaults.positions);
  require_user(model.num_layers <= 100'000, "{}num_hidden_layers is {}, and should be at most 100000", config.where(),
               model.num_layers);
  read_heads(config, arch, model);
  model.layernorm_epsilon = config.number("rms_norm_eps").value_or(arch == Arch::mixtral ? 1e-5 : 1e-6);
  model.activation = read_activation(config, "hidden_act", "silu", true);
  model.attention_dropout = config.number("attention_dropout").value_or(0);
  const bool biased = has_bias_key(arch);
  const bool attention_bias = biased && config.flag("attention_bias").value_or(false);
  model.add_qkv_bias = attention_bias || arch == Arch::qwen2;
  model.add_attention_output_bias = attention_bias;
  model.add_mlp_bias = arch == Arch::llama && config.flag("mlp_bias").value_or(false);
  read_hf_rope(config, model);
  read_window(config, arch, model);
  if (is_deepseek(arch)) {
    refuse_flag(config, "mlp_bias", false);
    read_hf_mla(config, model);
    read_deepseek_moe(config, model);
  } else if (has_experts(arch)) {
    read_hf_moe(config, model);
  }
}

}  // namespace

void set_window(ModelConfig& model, std::span<const std::int64_t> windows) {
  model.window_size = model.max_window_layers = 0;
  const auto first = std::ranges::find_if(windows, [](std::int64_t window) { return window > 0; });
  if (first == windows.end()) return;
  model.window_size = *first;
  if (std::find(first, windows.end(), 0) == windows.end()) {
    model.max_window_layers = first - windows.begin();
    return;
  }
  for (const std::int64_t window : windows)
    model.layer_types.emplace_back(window > 0 ? "sliding_attention" : "full_attention");
}

std::string read_hf_config(const std::filesystem::path& folder) {
  require_user(path_exists(folder),
               "{}: there is no such folder; models are not fetched from the hub, a folder on this machine is needed",
               folder.string());
  require_user(path_exists(folder / "config.json"), "{}: no Hugging Face folder: it has no config.json",
               folder.string());
  return read_whole_file(folder / "config.json", max_config_bytes);
}

ModelConfig parse_hf_config(std::string_view text, const std::string& where) {
  const HfJson json = parse_hf_json(text, where);
  const HfFields config(json, where + ": ");
  const Arch arch = read_arch(config);
  ModelConfig model;
  apply_arch_defaults(arch, model);
  model.arch = arch;
  read_hf_quantization(config);  // checked first: an unsupported quantization is refused
  if (const HfJson* layers = config.find("per_layer_config"); layers != nullptr && !layers->empty())
    config.refuse("per_layer_config", "layers of one shape are");
  refuse_flag(config, "add_cross_attention", false);
  refuse_flag(config, "is_encoder_decoder", false);
  refuse_flag(config, "is_causal", true);
  model.vocab_size = config.size({"vocab_size"}, default_sizes(arch).vocab);
  if (arch == Arch::gpt)
    read_gpt2(config, model);
  else
    read_llama_like(config, arch, model);
  model.init_method_std = config.number("initializer_range").value_or(0.02);
  const bool tied = config.flag("tie_word_embeddings").value_or(arch == Arch::gpt);
  model.untie_embeddings_and_output_weights = !tied;
  check_hf_limits(config, model);
  return model;
}

bool hf_decides(std::string_view key) {
  constexpr std::array free{std::string_view("hf"),
                            std::string_view("make_vocab_size_divisible_by"),
                            std::string_view("mtp_num_layers"),
                            std::string_view("mtp_loss_scaling_factor"),
                            std::string_view("init_method_std"),
                            std::string_view("hidden_dropout"),
                            std::string_view("attention_dropout"),
                            std::string_view("pad_vocab_in_softmax"),
                            std::string_view("recompute_granularity"),
                            std::string_view("recompute_modules"),
                            std::string_view("recompute_method"),
                            std::string_view("recompute_num_layers"),
                            std::string_view("offload_modules"),
                            std::string_view("freeze"),
                            std::string_view("moe.router_load_balancing_type"),
                            std::string_view("moe.aux_loss_coeff"),
                            std::string_view("moe.z_loss_coeff"),
                            std::string_view("moe.router_bias_update_rate"),
                            std::string_view("moe.router_force_load_balancing"),
                            std::string_view("moe.token_dispatcher_type"),
                            std::string_view("moe.expert_capacity_factor"),
                            std::string_view("moe.token_drop_policy"),
                            std::string_view("moe.expert_rank_capacity_factor"),
                            std::string_view("moe.shared_expert_overlap")};
  return std::ranges::find(free, key) == free.end();
}

}  // namespace tera
