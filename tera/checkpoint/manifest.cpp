#include "tera/checkpoint/manifest.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "tera/base/error.h"

namespace tera {
namespace {

using Json = nlohmann::json;

constexpr int format_version = 1;

// The value of a key, or null: of another kind than any that is looked for.
const Json& find(const Json& object, const char* key) {
  static const Json nothing;
  const auto it = object.find(key);
  return it == object.end() ? nothing : *it;
}

std::optional<std::int64_t> count_of(const Json& value) {
  constexpr auto max = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > max) return std::nullopt;
  return value.get<std::int64_t>();
}

std::optional<std::vector<std::int64_t>> counts_of(const Json& list) {
  if (!list.is_array()) return std::nullopt;
  std::vector<std::int64_t> counts;
  for (const Json& value : list) {
    const auto count = count_of(value);
    if (!count) return std::nullopt;
    counts.push_back(*count);
  }
  return counts;
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

CheckpointSource read_source(const Json& manifest, const std::string& where) {
  const auto step = count_of(find(manifest, "step"));
  const Json& config = find(manifest, "config");
  require_user(step && config.is_string(), "{}: 'step' or 'config' is missing", where);
  return {.step = *step, .config_yaml = config.get<std::string>(), .carried = {}};
}

std::map<std::string, std::uint64_t> read_files(const Json& files, const std::string& where) {
  require_user(files.is_object(), "{}: 'files' is missing", where);
  std::map<std::string, std::uint64_t> sizes;
  for (const auto& [name, file] : files.items()) {
    require_user(is_plain_name(name), "{}: '{:.200}' is not the name of a file in this folder", where, name);
    const auto bytes = count_of(find(file, "bytes"));
    require_user(bytes.has_value(), "{}: file '{:.200}' has no 'bytes'", where, name);
    sizes[name] = static_cast<std::uint64_t>(*bytes);
  }
  return sizes;
}

// `name` is for messages.
ManifestTensor read_tensor(const Json& tensor, const std::string& where, const std::string& name) {
  const Json &dtype = find(tensor, "dtype"), &pieces = find(tensor, "pieces");
  const auto shape = counts_of(find(tensor, "shape"));
  require_user(dtype.is_string() && shape && pieces.is_array(), "{}: tensor '{:.200}' lacks dtype, shape or pieces",
               where, name);
  require_user(pieces.size() == 1, "{}: tensor '{:.200}' is in {} pieces; this program reads tensors in one", where,
               name, pieces.size());
  const Json& file = find(pieces[0], "file");
  require_user(file.is_string(), "{}: the piece of tensor '{:.200}' names no file", where, name);
  const std::vector<std::int64_t> origin(shape->size(), 0);
  require_user(counts_of(find(pieces[0], "begin")) == origin && counts_of(find(pieces[0], "shape")) == shape,
               "{}: the piece of tensor '{:.200}' is not the whole tensor; this program reads no other", where, name);
  return {.dtype = dtype.get<std::string>(), .shape = *shape, .file = file.get<std::string>()};
}

}  // namespace

std::string format_manifest(const Manifest& manifest) {
  Json tensors = Json::object(), files = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    const std::vector<std::int64_t> origin(tensor.shape.size(), 0);
    const Json piece{{"file", tensor.file}, {"begin", origin}, {"shape", tensor.shape}};
    tensors[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"pieces", Json::array({piece})}};
  }
  for (const auto& [name, bytes] : manifest.files) files[name] = {{"bytes", bytes}};
  const Json json{{"format", "teratron"},          {"version", format_version},
                  {"step", manifest.source.step},  {"config", manifest.source.config_yaml},
                  {"tensors", std::move(tensors)}, {"files", std::move(files)}};
  try {
    return json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::strict);
  } catch (const Json::exception&) {
    fail_user("the config cannot be stored in a checkpoint: it is not UTF-8 text");
  }
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  require_user(json.is_object() && find(json, "format") == "teratron", "{}: not a manifest of a checkpoint", where);
  const Json& version = find(json, "version");
  require_user(version == format_version, "{}: version {}, this program reads version {}", where,
               version.is_null() ? "none" : version.dump(-1, ' ', false, Json::error_handler_t::replace),
               format_version);
  Manifest manifest{.source = read_source(json, where), .tensors = {}, .files = read_files(find(json, "files"), where)};
  const Json& tensors = find(json, "tensors");
  require_user(tensors.is_object(), "{}: 'tensors' is missing", where);
  for (const auto& [name, tensor] : tensors.items()) {
    ManifestTensor read = read_tensor(tensor, where, name);
    require_user(manifest.files.contains(read.file),
                 "{}: tensor '{:.200}' is in '{:.200}', which 'files' does not list", where, name, read.file);
    manifest.tensors.emplace(name, std::move(read));
  }
  return manifest;
}

}  // namespace tera
