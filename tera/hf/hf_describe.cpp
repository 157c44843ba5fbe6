#include "tera/hf/hf_describe.h"

#include <fmt/core.h>

#include <set>
#include <string>

#include "tera/base/joined.h"
#include "tera/config/family.h"
#include "tera/hf/hf_folder.h"
#include "tera/setup/resolve.h"

namespace tera {

nlohmann::ordered_json describe_hf_folder(const std::filesystem::path& path) {
  const HfFolder folder(path);
  RunConfig config;
  config.model = folder.model();
  config.train.seq_length = config.model.max_position_embeddings;
  const ModelShape model = resolve(config, Purpose::inspect).model;
  check_tensors(folder, model);

  std::set<std::string_view> dtypes;
  std::int64_t parameters = 0;
  std::uint64_t bytes = 0;
  for (const auto& [name, entry] : folder.tensors()) {
    const bool scaled = folder.is_scaled(name);
    dtypes.insert(scaled ? "fp8" : name_of(entry.dtype));
    parameters += count(entry.shape);
    bytes += static_cast<std::uint64_t>(count(entry.shape)) * (scaled ? 1 : size_of(entry.dtype));
  }
  nlohmann::ordered_json description{
      {"kind", "Hugging Face folder"},
      {"path", path.string()},
      {"arch", family_of(model).name},
      {"layers", model.num_layers},
      {"hidden", model.hidden},
      {"ffn", model.ffn},
      {"heads", fmt::format("{} of {}, {} for keys and values", model.heads, model.head_dim, model.kv_heads)},
      {"vocabulary", model.vocab},
      {"positions", model.max_positions},
      {"tied_embeddings", model.tied_embeddings},
      {"rope_scaling", name_of(model.rope.scaling.type)},
      {"files", folder.file_count()},
      {"tensors", folder.tensors().size()},
      {"parameters", parameters},
      {"dtype", joined(dtypes, ", ")},
      {"bytes", bytes}};
  if (model.mtp_layers > 0) description["mtp_layers"] = model.mtp_layers;
  return description;
}

}  // namespace tera
