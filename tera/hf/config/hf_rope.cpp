#include "tera/hf/config/hf_rope.h"

#include <string>

#include "tera/base/error.h"

namespace tera {
namespace {

RopeScalingKind scaling_kind(const HfFields& map) {
  const char* key = map.find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string name = map.text(key).value_or("default");
  if (name == "default") return RopeScalingKind::none;
  const auto kind = parse_enum<RopeScalingKind>(name);
  if (!kind || *kind == RopeScalingKind::none) map.refuse(key, "default, linear, llama3 and yarn are");
  return *kind;
}

// Transformers counts null and 0 as not given in most places, and so does model.rope_scaling where 0 means that.
double number_or(const HfFields& map, const char* key, double absent) {
  const double value = map.number(key).value_or(0);
  return value == 0 ? absent : value;
}

double needed_number(const HfFields& map, const char* key) {
  const auto value = map.number(key);
  require_user(value.has_value(), "{}{} is missing", map.where(), key);
  return *value;
}

void read_yarn(const HfFields& map, const ModelConfig& model, RopeScaling& scaling) {
  const double ratio = static_cast<double>(model.max_position_embeddings) /
                       static_cast<double>(scaling.original_max_position_embeddings);
  scaling.factor = map.number("factor").value_or(ratio);
  scaling.beta_fast = number_or(map, "beta_fast", scaling.beta_fast);
  scaling.beta_slow = number_or(map, "beta_slow", scaling.beta_slow);
  scaling.mscale = map.number("mscale").value_or(0);
  scaling.mscale_all_dim = map.number("mscale_all_dim").value_or(0);
  scaling.attention_factor = map.number("attention_factor").value_or(0);
  if (map.find("attention_factor") != nullptr &&
      scaling.attention_factor == 0)  // 0 would be used, and make all attention logits 0
    map.refuse("attention_factor", "leave it out for YaRN's own");
  scaling.truncate = map.flag("truncate").value_or(!map.has("truncate"));  // null means false
  require_user(scaling.beta_fast > scaling.beta_slow, "{}beta_fast is {}, and should be above beta_slow, which is {}",
               map.where(), scaling.beta_fast, scaling.beta_slow);
}

void read_scaling(const HfFields& config, const HfFields& map, ModelConfig& model) {
  RopeScaling& scaling = model.rope_scaling;
  scaling.type = scaling_kind(map);
  if (map.number("partial_rotary_factor").value_or(1) != 1) map.refuse("partial_rotary_factor", "1 is");
  if (scaling.type == RopeScalingKind::none) return;
  const char* original = "original_max_position_embeddings";
  scaling.original_max_position_embeddings =
      config.integer(original).value_or(map.integer(original).value_or(model.max_position_embeddings));
  require_user(scaling.original_max_position_embeddings > 0, "{}{} must be above 0", map.where(), original);
  if (scaling.type == RopeScalingKind::yarn) return read_yarn(map, model, scaling);
  scaling.factor = needed_number(map, "factor");
  if (scaling.type != RopeScalingKind::llama3) return;
  scaling.low_freq_factor = needed_number(map, "low_freq_factor");
  scaling.high_freq_factor = needed_number(map, "high_freq_factor");
  require_user(scaling.high_freq_factor > scaling.low_freq_factor,
               "{}high_freq_factor is {}, and should be above low_freq_factor, which is {}", map.where(),
               scaling.high_freq_factor, scaling.low_freq_factor);
}

}  // namespace

// If a file has both maps, rope_scaling is used and rope_parameters is ignored, as in transformers; an empty map counts
// as absent.
void read_hf_rope(const HfFields& config, ModelConfig& model) {
  const HfJson* scaling = config.find("rope_scaling");
  const bool empty = scaling == nullptr || (scaling->is_object() && scaling->empty());
  const auto map = config.object(empty ? "rope_parameters" : "rope_scaling");
  const double outside = config.number("rope_theta").value_or(model.rotary_base);
  model.rotary_base = map ? map->number("rope_theta").value_or(outside) : outside;
  if (config.number("partial_rotary_factor").value_or(1) != 1) config.refuse("partial_rotary_factor", "1 is");
  if (!map) return;
  for (const char* kind : {"full_attention", "sliding_attention"})
    if (map->has(kind)) map->refuse(kind, "one RoPE for all layers is");
  read_scaling(config, *map, model);
}

namespace {

// rope_scaling as JSON; null if nothing is scaled.
HfJson scaling_map(const ModelConfig& model) {
  const RopeScaling scaling = model.multi_latent_attention ? mla_scaling(model.mla) : model.rope_scaling;
  HfJson map;
  if (scaling.type == RopeScalingKind::none) return map;
  map["rope_type"] = std::string(name_of(scaling.type));
  map["factor"] = scaling.factor;
  if (scaling.type != RopeScalingKind::linear)
    map["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  if (scaling.type == RopeScalingKind::llama3) {
    map["low_freq_factor"] = scaling.low_freq_factor;
    map["high_freq_factor"] = scaling.high_freq_factor;
  }
  if (scaling.type == RopeScalingKind::yarn) {
    map["beta_fast"] = scaling.beta_fast;
    map["beta_slow"] = scaling.beta_slow;
    if (scaling.attention_factor != 0) map["attention_factor"] = scaling.attention_factor;
    if (scaling.mscale != 0) map["mscale"] = scaling.mscale;
    if (scaling.mscale_all_dim != 0) map["mscale_all_dim"] = scaling.mscale_all_dim;
    if (!scaling.truncate) map["truncate"] = false;
  }
  return map;
}

}  // namespace

void write_hf_rope(const ModelConfig& model, HfJson& config) {
  config["rope_theta"] = model.rotary_base;
  HfJson map = config["rope_scaling"] = scaling_map(model);
  if (map.is_null()) map["rope_type"] = "default";
  map["rope_theta"] = model.rotary_base;
  config["rope_parameters"] = std::move(map);
}

void add_older_hf_rope(const ModelConfig& model, HfJson& config) {
  const auto empty = [&](const char* key) {
    return !config.contains(key) || config[key].is_null() || config[key].empty();
  };
  if (empty("rope_parameters") || !empty("rope_scaling")) return;
  config["rope_theta"] = model.rotary_base;
  config["rope_scaling"] = scaling_map(model);
}

}  // namespace tera
