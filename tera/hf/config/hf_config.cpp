#include "tera/hf/config/hf_config.h"

#include <algorithm>
#include <array>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/hf/config/hf_decoder.h"
#include "tera/hf/config/hf_json.h"
#include "tera/hf/config/hf_limits.h"
#include "tera/hf/config/hf_quantization.h"
#include "tera/hf/config/hf_window.h"

namespace tera {
namespace {

constexpr std::size_t max_config_bytes = std::size_t{16} << 20;

const ModelFamily& read_family(const HfFields& config, Families families) {
  const auto type = config.text("model_type");
  require_user(type.has_value(), "{}model_type is missing", config.where());
  const ModelFamily* family = find_hf_family(*type, families);
  if (!family) config.refuse("model_type", list_hf_types(families) + " are");
  return *family;
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

ModelConfig parse_hf_config(std::string_view text, const std::string& where, Families families) {
  const HfJson json = parse_hf_json(text, where);
  const HfFields config(json, where + ": ");
  const ModelFamily& family = read_family(config, families);
  ModelConfig model;
  family.defaults(model);
  model.arch = &family;
  read_hf_quantization(config);  // checked first: an unsupported quantization is refused
  if (const HfJson* layers = config.find("per_layer_config"); layers != nullptr && !layers->empty())
    config.refuse("per_layer_config", "layers of one shape are");
  refuse_hf_flag(config, "add_cross_attention", false);
  refuse_hf_flag(config, "is_encoder_decoder", false);
  refuse_hf_flag(config, "is_causal", true);
  family.read_hf(config, model);
  model.init_method_std = config.number("initializer_range").value_or(0.02);
  const bool tied = config.flag("tie_word_embeddings").value_or(!model.untie_embeddings_and_output_weights);
  model.untie_embeddings_and_output_weights = !tied;
  check_hf_limits(config, model);
  return model;
}

}  // namespace tera
