#include "tera/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/checkpoint/safetensors.h"
#include "tera/nn/params.h"

namespace tera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int format_version = 1;
constexpr std::size_t max_manifest_bytes = std::size_t{64} << 20;
constexpr auto weights_file = "model.safetensors";

Shape stored_shape(const Part& part) { return part.transposed ? shape(part.global[1], part.global[0]) : part.global; }

// From [rows,columns] to [columns,rows].
std::vector<float> transpose(std::span<const float> in, std::int64_t rows, std::int64_t columns) {
  std::vector<float> out(in.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      out[static_cast<std::size_t>(c * rows + r)] = in[static_cast<std::size_t>(r * columns + c)];
  return out;
}

std::vector<SafetensorsSpec> list_tensors(const ParamStore& params) {
  std::vector<SafetensorsSpec> tensors;
  for (const Param* param : params.by_name())
    for (const auto& part : param->spec.parts) tensors.push_back({part.name, DType::f32, stored_shape(part)});
  return tensors;
}

void write_weights(const fs::path& path, const ParamStore& params, Ops& ops) {
  SafetensorsWriter writer(path, list_tensors(params));
  for (const Param* param : params.by_name()) {
    for (const auto& part : param->spec.parts) {
      std::vector<float> values = read_part(ops, param->master ? param->master : param->value, part);
      if (part.transposed) values = transpose(values, part.global[0], part.global[1]);
      writer.write(part.name, std::as_bytes(std::span(values)));
    }
  }
  writer.finish();
}

Json manifest_of(const CheckpointSource& source, const ParamStore& params, std::uintmax_t bytes) {
  Json tensors = Json::object();
  for (const auto& tensor : list_tensors(params)) {
    const std::vector<std::int64_t> dims(tensor.shape.dim.begin(), tensor.shape.dim.begin() + tensor.shape.rank);
    const Json piece{{"file", weights_file}, {"begin", std::vector<std::int64_t>(dims.size(), 0)}, {"shape", dims}};
    tensors[tensor.name] = {{"dtype", name_of(tensor.dtype)}, {"shape", dims}, {"pieces", Json::array({piece})}};
  }
  return {{"format", "teratron"},          {"version", format_version},
          {"step", source.step},           {"config", source.config_yaml},
          {"tensors", std::move(tensors)}, {"files", {{weights_file, {{"bytes", bytes}}}}}};
}

fs::path resolve_folder(const fs::path& path) {
  require_user(fs::is_directory(path), "{}: there is no such folder", path.string());
  if (fs::exists(path / "manifest.json")) return path;
  require_user(fs::exists(path / "latest"),
               "{}: neither a checkpoint (no manifest.json) nor a folder of checkpoints (no latest)", path.string());
  std::string name = read_whole_file(path / "latest", 256);
  while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
  require_user(!name.empty() && name.find('/') == std::string::npos && name[0] != '.',
               "{}: 'latest' names no folder here: '{}'", path.string(), name);
  require_user(fs::exists(path / name / "manifest.json"), "{}: 'latest' names {}, which is not complete", path.string(),
               name);
  return path / name;
}

}  // namespace

fs::path save_checkpoint(const fs::path& root, const CheckpointSource& source, ParamStore& params, Ops& ops) {
  const std::string name = fmt::format("step_{:08d}", source.step);
  const fs::path folder = root / name, beside = root / (name + ".writing");
  std::error_code error;
  fs::remove_all(beside, error);
  fs::create_directories(beside, error);
  require_user(!error, "checkpoint.save={}: {}", root.string(), error.message());
  try {
    write_weights(beside / weights_file, params, ops);
    const Json manifest = manifest_of(source, params, fs::file_size(beside / weights_file));
    write_file_atomically(beside / "manifest.json", manifest.dump(1));
    fs::remove_all(folder);
    fs::rename(beside, folder);
    write_file_atomically(root / "latest", name + "\n");
  } catch (...) {
    fs::remove_all(beside, error);
    throw;
  }
  return folder;
}

Checkpoint::Checkpoint(const fs::path& path) : folder_(resolve_folder(path)) {
  const std::string where = (folder_ / "manifest.json").string();
  const Json manifest = Json::parse(read_whole_file(where, max_manifest_bytes), nullptr, /*allow_exceptions=*/false);
  require_user(manifest.is_object() && manifest.contains("format") && manifest["format"] == "teratron",
               "{}: not a manifest of a checkpoint", where);
  const auto& version = manifest.find("version");
  require_user(version != manifest.end() && *version == format_version, "{}: version {}, this program reads version {}",
               where, version == manifest.end() ? "none" : version->dump(), format_version);
  const auto step = manifest.find("step"), config = manifest.find("config");
  require_user(step != manifest.end() && step->is_number_unsigned() && config != manifest.end() && config->is_string(),
               "{}: 'step' or 'config' is missing", where);
  source_ = {.step = step->get<std::int64_t>(), .config_yaml = config->get<std::string>()};
}

void Checkpoint::load_weights(ParamStore& params, Ops& ops) const {
  const SafetensorsFile file(folder_ / weights_file);
  tera::load_weights(file, params, ops);
  std::set<std::string> expected;
  for (const Param* param : params.by_name())
    for (const auto& part : param->spec.parts) expected.insert(part.name);
  for (const auto& entry : file.entries())
    require_user(expected.contains(entry.name), "{}: '{}' is not a tensor of this model", file.path().string(),
                 entry.name);
}

std::vector<float> to_model_layout(std::vector<float> values, const Part& part) {
  return part.transposed ? transpose(values, part.global[1], part.global[0]) : std::move(values);
}

void load_weights(const SafetensorsFile& file, ParamStore& params, Ops& ops) {
  for (const Param* param : params.by_name()) {
    for (const auto& part : param->spec.parts) {
      const StoredTensor stored = file.get(part.name);
      if (stored.shape != stored_shape(part))
        fail_user("{}: '{}' is {}, the model needs {}", file.path().string(), part.name, to_string(stored.shape),
                  to_string(stored_shape(part)));
      write_part(ops, *param, part, to_model_layout(file.read_floats(part.name), part));
    }
  }
}

}  // namespace tera
