#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/config/catalog.h"
#include "tera/config/family.h"
#include "tera/config/setup.h"
#include "tera/config/value.h"
#include "tera/hf/config/hf_config.h"
#include "tera/hf/config/hf_json.h"
#include "tera/hf/config/hf_mla.h"
#include "tera/hf/config/hf_moe.h"
#include "tera/hf/config/hf_window.h"

namespace tera {
namespace {

// Resets unused fields to their defaults, so that two descriptions of one model are equal.
RopeScaling needed_scaling(const RopeScaling& scaling, std::int64_t max_positions) {
  RopeScaling out{.type = scaling.type};
  if (scaling.type == RopeScalingKind::none) return out;
  out.factor = scaling.factor;
  out.original_max_position_embeddings =
      scaling.type == RopeScalingKind::linear ? max_positions : scaling.original_max_position_embeddings;
  if (scaling.type == RopeScalingKind::llama3) {
    out.low_freq_factor = scaling.low_freq_factor;
    out.high_freq_factor = scaling.high_freq_factor;
  }
  if (scaling.type != RopeScalingKind::yarn) return out;
  out.beta_fast = scaling.beta_fast;
  out.beta_slow = scaling.beta_slow;
  out.mscale = scaling.mscale;
  out.mscale_all_dim = scaling.mscale_all_dim;
  out.attention_factor = scaling.attention_factor;
  out.truncate = scaling.truncate;
  return out;
}

// The model section with all sizes filled in.
ModelConfig model_section(const ModelShape& shape) {
  ModelConfig model;
  const ModelFamily& family = family_of(shape);
  family.defaults(model);
  const bool says_all_biases = model.add_bias_linear;
  model = {};
  model.arch = &family;
  model.num_layers = shape.num_layers;
  model.hidden_size = shape.hidden;
  model.ffn_hidden_size = shape.ffn;
  model.num_attention_heads = shape.heads;
  model.num_query_groups = shape.kv_heads;
  model.kv_channels = shape.mla ? 0 : shape.head_dim;
  model.vocab_size = shape.vocab;
  model.max_position_embeddings = shape.max_positions;
  model.normalization = shape.norm;
  model.layernorm_epsilon = std::stod(fmt::format("{}", shape.norm_eps));  // 1e-5, not the float nearest to it
  model.activation = shape.activation;
  model.position_embedding_type = shape.positions;
  model.add_bias_linear = says_all_biases && shape.linear_bias;
  model.add_qkv_bias = !model.add_bias_linear && shape.qkv_bias;
  model.add_attention_output_bias = !model.add_bias_linear && (shape.out_bias || shape.linear_bias);
  model.add_mlp_bias = !model.add_bias_linear && (shape.mlp_bias || shape.linear_bias);
  model.qk_layernorm = shape.qk_norm;
  model.mtp_num_layers = shape.mtp_layers;
  model.untie_embeddings_and_output_weights = !shape.tied_embeddings;
  model.init_method_std = std::stod(fmt::format("{}", shape.init_std));
  model.hidden_dropout = std::stod(fmt::format("{}", shape.hidden_dropout));
  model.attention_dropout = std::stod(fmt::format("{}", shape.attention_dropout));
  if (shape.positions == PositionKind::rope) {
    model.rotary_base = shape.rope.base;
    if (!shape.mla)
      model.rotary_percent = static_cast<double>(shape.rope.rotary_dim) / static_cast<double>(shape.head_dim);
    model.rotary_interleaved = shape.rope.interleaved;
    if (!shape.mla) model.rope_scaling = needed_scaling(shape.rope.scaling, shape.max_positions);
  }
  set_window(model, shape.window);
  model.multi_latent_attention = shape.mla.has_value();
  model.mla = mla_section(shape);
  model.moe = moe_section(shape);
  if (family.to_hf_form) family.to_hf_form(model);
  return model;
}

HfJson new_config(const ModelConfig& model) {
  const ModelFamily& family = *model.arch;
  require_user(model.multi_latent_attention == family.has_mla,
               "model.multi_latent_attention={}: config.json of a {} cannot say that", model.multi_latent_attention,
               family.hf_type);
  HfJson config;
  config["architectures"] = {std::string(family.hf_class)};
  config["model_type"] = std::string(family.hf_type);
  family.write_hf(model, config);
  config["initializer_range"] = model.init_method_std;
  config["tie_word_embeddings"] = !model.untie_embeddings_and_output_weights;
  config["bos_token_id"] = config["eos_token_id"] = nullptr;
  config["use_cache"] = true;
  config["transformers_version"] = std::string(family.hf_since);
  return config;
}

// Fields that transformers declares as float: 5 refuses a whole number there.
void point_floats(HfJson& object) {
  constexpr std::array floats{"rms_norm_eps",
                              "layer_norm_epsilon",
                              "initializer_range",
                              "attention_dropout",
                              "resid_pdrop",
                              "embd_pdrop",
                              "attn_pdrop",
                              "factor",
                              "low_freq_factor",
                              "high_freq_factor",
                              "beta_fast",
                              "beta_slow",
                              "mscale",
                              "mscale_all_dim",
                              "attention_factor",
                              "partial_rotary_factor",
                              "router_aux_loss_coef",
                              "router_jitter_noise",
                              "routed_scaling_factor",
                              "aux_loss_alpha",
                              "summary_first_dropout"};
  for (const char* key : floats)
    if (const auto it = object.find(key); it != object.end() && it->is_number_integer()) *it = it->get<double>();
  for (const char* map : {"rope_scaling", "rope_parameters"})
    if (const auto it = object.find(map); it != object.end() && it->is_object()) point_floats(*it);
}

void set_dtype(HfJson& config, std::string_view dtype) {
  if (!dtype.empty() && (config.contains("dtype") || !config.contains("torch_dtype")))
    config["dtype"] = std::string(dtype);
  if (!dtype.empty() || (config.contains("dtype") && !config.contains("torch_dtype")))
    config["torch_dtype"] = dtype.empty() ? config["dtype"] : HfJson(std::string(dtype));
}

void set_tokens(HfJson& config, const HfTokenIds& tokens) {
  std::vector<std::string> others;
  for (const auto& entry : config.items())
    if (entry.key().ends_with("_token_id")) others.push_back(entry.key());
  for (const std::string& key : others) config.erase(key);
  const auto set = [&](const char* key, std::int32_t id) { config[key] = id < 0 ? HfJson(nullptr) : HfJson(id); };
  set("bos_token_id", tokens.bos);
  set("eos_token_id", tokens.eos);
  if (tokens.pad >= 0) set("pad_token_id", tokens.pad);
}

// Groups of keys with several equivalent settings, of which model_section() has one.
constexpr std::array layer_keys{std::string_view("model.moe.first_k_dense"), std::string_view("model.moe.layer_freq"),
                                std::string_view("model.moe.decoder_sparse_step"),
                                std::string_view("model.moe.mlp_only_layers")};
constexpr std::array bias_keys{std::string_view("model.add_bias_linear"), std::string_view("model.add_qkv_bias"),
                               std::string_view("model.add_attention_output_bias"),
                               std::string_view("model.add_mlp_bias")};

// "model.moe.first_k_dense=1": what the user wrote in place of such a key. Empty: the key itself.
std::string written_instead(const std::string& key, const std::string& value, const ModelConfig& written) {
  RunConfig user, arch_config;
  user.model = written;
  written.arch->defaults(arch_config.model);
  std::span<const std::string_view> group;
  if (std::ranges::find(layer_keys, key) != layer_keys.end())  // files with first dense layers can say that key
    group = std::span(layer_keys).subspan(arch_config.model.moe.first_k_dense > 0 ? 1 : 0);
  if (std::ranges::find(bias_keys, key) != bias_keys.end()) group = bias_keys;
  std::map<std::string, std::string> defaults;
  for_each_value(arch_config, [&](const std::string& name, const Field& field, const void* at) {
    defaults[name] = write_value(field, at);
  });
  std::vector<std::string> said;
  bool as_it_is = group.empty();
  for_each_value(user, [&](const std::string& name, const Field& field, const void* at) {
    const std::string text = write_value(field, at);
    as_it_is = as_it_is || (name == key && text == value);
    if (std::ranges::find(group, name) != group.end() && text != defaults[name])
      said.push_back(fmt::format("{}={}", name, text));
  });
  return as_it_is ? std::string() : joined(said, ", ");
}

// Checks that reading the written text gives the same model.
void check_round_trip(const std::string& text, const ModelConfig& wanted, const ModelConfig* written_by_user) {
  RunConfig said, meant;
  const std::array family{wanted.arch};
  said.model = parse_hf_config(text, "config.json", family);
  meant.model = wanted;
  said.model.rope_scaling = needed_scaling(said.model.rope_scaling, said.model.max_position_embeddings);
  std::vector<std::string> values;
  for_each_value(said, [&](const std::string&, const Field& field, const void* value) {
    values.push_back(write_value(field, value));
  });
  auto next = values.begin();
  for_each_value(meant, [&](const std::string& key, const Field& field, const void* value) {
    const std::string written = write_value(field, value), read = *next++;
    if (!key.starts_with("model.") || !field.from_hf || written == read) return;
    const std::string_view type = wanted.arch->hf_type;
    const std::string instead = written_by_user ? written_instead(key, written, *written_by_user) : std::string();
    if (!instead.empty()) fail_user("{}: config.json of a {} cannot say that", instead, type);
    fail_user("{}={}: config.json of a {} cannot say that, it would mean {}", key, written, type, read);
  });
}

}  // namespace

std::string format_hf_config(const ModelShape& shape, const HfConfigOptions& options) {
  const ModelConfig model = model_section(shape);
  HfJson config = options.source.empty() ? new_config(model) : parse_hf_json(options.source, "config.json");
  set_dtype(config, options.dtype);
  if (options.tokens) set_tokens(config, *options.tokens);
  if (model.arch->finish_hf) model.arch->finish_hf(model, config);
  if (config.contains("num_nextn_predict_layers") || model.mtp_num_layers > 0)
    config["num_nextn_predict_layers"] = model.mtp_num_layers;  // the number of exported layers, not that of the source
  config.erase("quantization_config");                          // exported weights are not quantized
  point_floats(config);
  std::string text = config.dump(2) + "\n";
  check_round_trip(text, model, options.written);
  return text;
}

}  // namespace tera
