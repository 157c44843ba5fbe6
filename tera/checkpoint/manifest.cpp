#include "tera/checkpoint/manifest.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "tera/base/checksum.h"
#include "tera/base/error.h"

namespace tera {
namespace {

using Json = nlohmann::json;

// The last field and the end of the object: the checksum of all text before it.
constexpr std::string_view seal_begin = ",\"crc32c\":\"", seal_end = "\"}\n";
constexpr std::size_t seal_digits = 8, seal_bytes = seal_begin.size() + seal_digits + seal_end.size();

constexpr std::int64_t max_exact = std::int64_t{1} << 53;  // bound of counts that are stored as f64

bool is_sealed(std::string_view text) {
  return text.size() > seal_bytes && text.ends_with(seal_end) &&
         text.substr(text.size() - seal_bytes).starts_with(seal_begin);
}

std::string checksum_text(std::string_view text) {
  return fmt::format("{:08x}", crc32c(std::as_bytes(std::span(text))));
}

// Verifies the checksum before the text is parsed.
void check_seal(std::string_view text, const std::string& where) {
  if (!is_sealed(text)) return;
  const std::string_view stored = text.substr(text.size() - seal_end.size() - seal_digits, seal_digits);
  const std::string found = checksum_text(text.substr(0, text.size() - seal_bytes));
  require_user(stored == found, "{}: its checksum is {}, but {:.8} was written: the file was damaged", where, found,
               stored);
}

// Duplicate keys are an error; other JSON readers use the last value.
Json parse_json(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> keys;  // keys of the open objects
  std::optional<std::string> twice;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      twice = parsed.get<std::string>();
    return true;
  };
  Json json = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (twice) fail_user("{}: '{:.200}' occurs twice", where, *twice);
  return json;
}

// The value of a key, or null, which no reader of a field accepts.
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

// Reads a shape: one or two positive dims, whose bytes fit in 64 bits.
std::optional<Shape> shape_of(const Json& list) {
  if (!list.is_array() || list.empty() || list.size() > 2) return std::nullopt;
  Shape shape;
  std::int64_t bytes = 8;
  for (const Json& value : list) {
    const auto dim = count_of(value);
    if (!dim || *dim == 0 || __builtin_mul_overflow(bytes, *dim, &bytes)) return std::nullopt;
    shape[shape.rank++] = *dim;
  }
  return shape;
}

std::optional<DType> dtype_of_name(const Json& name) {
  for (const auto& [dtype, known] : EnumNames<DType>::values)
    if (name == known) return dtype;
  return std::nullopt;
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

// Reads counts by key; false if one is missing or is not a count.
bool read_counts(const Json& object, std::initializer_list<std::pair<const char*, std::int64_t*>> fields) {
  return std::ranges::all_of(fields, [&](const auto& field) {
    const auto count = count_of(find(object, field.first));
    if (count) *field.second = *count;
    return count.has_value();
  });
}

// Earlier versions did not store consumed_tokens. Every sample has at least one token.
void read_tokens(const Json& manifest, CheckpointSource& source, const std::string& where) {
  if (!manifest.contains("consumed_tokens")) return;
  std::int64_t& tokens = source.consumed_tokens.emplace();
  require_user(read_counts(manifest, {{"consumed_tokens", &tokens}}) && tokens >= source.consumed_samples,
               "{}: 'consumed_tokens' is no count of at least 'consumed_samples'", where);
}

// Earlier versions did not store skipped_samples and loss_scale; then there are none.
void read_loss_scale(const Json& manifest, CheckpointSource& source, const std::string& where) {
  if (manifest.contains("skipped_samples"))
    require_user(read_counts(manifest, {{"skipped_samples", &source.skipped_samples}}) &&
                     source.skipped_samples <= source.consumed_samples,
                 "{}: 'skipped_samples' is no part of 'consumed_samples'", where);
  if (!manifest.contains("loss_scale")) return;
  const Json &stored = manifest["loss_scale"], &scale = find(stored, "scale");
  LossScale& kept = source.loss_scale.emplace();
  const bool good = read_counts(stored, {{"good_steps", &kept.good_steps}, {"hysteresis", &kept.hysteresis}}) &&
                    kept.good_steps <= max_exact && kept.hysteresis <= max_exact && scale.is_number();
  if (good) kept.scale = scale.get<double>();
  require_user(good && kept.scale > 0 && kept.scale <= max_loss_scale,
               "{}: 'loss_scale' lacks a positive 'scale', or counts 'good_steps' and 'hysteresis'", where);
}

CheckpointSource read_source(const Json& manifest, int version, const std::string& where) {
  CheckpointSource source;
  const Json& config = find(manifest, "config");
  require_user(read_counts(manifest, {{"step", &source.step}}) && config.is_string(),
               "{}: 'step' or 'config' is missing", where);
  source.config_yaml = config.get<std::string>();
  require_user(version == 1 || read_counts(manifest, {{"consumed_samples", &source.consumed_samples},
                                                      {"updates", &source.updates},
                                                      {"seed", &source.seed}}),
               "{}: 'consumed_samples', 'updates' or 'seed' is missing", where);
  const Json& started_from = find(manifest, "started_from");
  require_user(version == 1 || started_from.is_string(), "{}: 'started_from' is missing", where);
  if (started_from.is_string()) source.started_from = started_from.get<std::string>();
  if (version > 1) read_tokens(manifest, source, where);
  if (version > 1) read_loss_scale(manifest, source, where);
  return source;
}

std::optional<std::uint32_t> checksum_of(const Json& value) {
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  std::uint32_t sum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum, 16);
  if (error != std::errc{} || text.size() != 8 || end != text.data() + text.size()) return std::nullopt;
  return sum;
}

std::vector<ManifestFile> read_files(const Json& files, int version, const std::string& where) {
  require_user(files.is_object(), "{}: 'files' is missing", where);
  std::vector<ManifestFile> all;  // in order of names, as nlohmann::json sorts keys
  for (const auto& [name, file] : files.items()) {
    require_user(is_plain_name(name), "{}: '{:.200}' is not the name of a file in this folder", where, name);
    const auto bytes = count_of(find(file, "bytes"));
    require_user(bytes.has_value(), "{}: file '{:.200}' has no 'bytes'", where, name);
    const auto checksum = checksum_of(find(file, "crc32c"));
    require_user(version == 1 || checksum, "{}: file '{:.200}' has no 'crc32c' of eight hexadecimal digits", where,
                 name);
    all.push_back({name, static_cast<std::uint64_t>(*bytes), checksum.value_or(0)});
  }
  return all;
}

// Reads one tensor of a manifest.
struct TensorReader {
  const std::vector<ManifestFile>& files;
  int version;
  const std::string& where;
  const std::string& name;

  ManifestTensor read(const Json& tensor) const {
    const auto dtype = dtype_of_name(find(tensor, "dtype"));
    const auto shape = shape_of(find(tensor, "shape"));
    const Json& pieces = find(tensor, "pieces");
    require_user(dtype && shape && pieces.is_array(), "{}: tensor '{:.200}' lacks a known dtype, shape or pieces",
                 where, name);
    ManifestTensor read{*dtype, *shape, {}};
    for (const Json& piece : pieces) read.pieces.push_back(read_piece(piece, read));
    check_cover(read);
    return read;
  }

 private:
  ManifestPiece read_piece(const Json& json, const ManifestTensor& tensor) const {
    const Json& file = find(json, "file");
    require_user(file.is_string(), "{}: a piece of tensor '{:.200}' names no file", where, name);
    const auto listed = std::ranges::lower_bound(files, file.get_ref<const std::string&>(), {}, &ManifestFile::name);
    require_user(listed != files.end() && listed->name == file.get_ref<const std::string&>(),
                 "{}: tensor '{:.200}' is in '{:.200}', which 'files' does not list", where, name,
                 file.get_ref<const std::string&>());
    ManifestPiece piece{.file = static_cast<std::size_t>(listed - files.begin()), .slice = full_slice(tensor.shape)};
    if (version == 1) return piece;
    std::int64_t offset = 0;
    TensorSlice& slice = piece.slice;
    require_user(read_counts(json, {{"offset", &offset},
                                    {"split", &slice.split},
                                    {"begin", &slice.begin},
                                    {"end", &slice.end},
                                    {"from", &slice.from},
                                    {"to", &slice.to}}) &&
                     is_slice_of(slice, tensor.shape),
                 "{}: a piece of tensor '{:.200}' is no slice of it", where, name);
    piece.offset = static_cast<std::uint64_t>(offset);
    const auto bytes = static_cast<std::uint64_t>(slice.elements()) * size_of(tensor.dtype);
    require_user(bytes <= listed->bytes && piece.offset <= listed->bytes - bytes,
                 "{}: a piece of tensor '{:.200}' ends behind the end of '{:.200}'", where, name, listed->name);
    return piece;
  }

  void check_cover(const ManifestTensor& tensor) const {
    std::vector<TensorSlice> slices;
    for (const ManifestPiece& piece : tensor.pieces) slices.push_back(piece.slice);
    const std::string problem = why_not_a_cover(std::move(slices), tensor.shape);
    require_user(problem.empty(), "{}: the pieces of tensor '{:.200}' are not the whole tensor: {}", where, name,
                 problem);
  }
};

Json format_piece(const ManifestPiece& piece, const std::string& file) {
  const TensorSlice& slice = piece.slice;
  return {{"file", file},     {"offset", piece.offset}, {"split", slice.split}, {"begin", slice.begin},
          {"end", slice.end}, {"from", slice.from},     {"to", slice.to}};
}

Json format_tensors(const Manifest& manifest) {
  Json tensors = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    Json pieces = Json::array();
    for (const ManifestPiece& piece : tensor.pieces)
      pieces.push_back(format_piece(piece, manifest.files[piece.file].name));
    const std::vector<std::int64_t> dims(tensor.shape.dim.begin(), tensor.shape.dim.begin() + tensor.shape.rank);
    tensors[name] = {{"dtype", name_of(tensor.dtype)}, {"shape", dims}, {"pieces", std::move(pieces)}};
  }
  return tensors;
}

}  // namespace

std::string format_manifest(const Manifest& manifest) {
  Json files = Json::object();
  for (const ManifestFile& file : manifest.files)
    files[file.name] = {{"bytes", file.bytes}, {"crc32c", fmt::format("{:08x}", file.crc32c)}};
  const CheckpointSource& source = manifest.source;
  Json json{{"format", "teratron"},
            {"version", 2},
            {"order", "[out,in]"},
            {"step", source.step},
            {"consumed_samples", source.consumed_samples},
            {"skipped_samples", source.skipped_samples},
            {"updates", source.updates},
            {"seed", source.seed},
            {"started_from", source.started_from},
            {"config", source.config_yaml},
            {"tensors", format_tensors(manifest)},
            {"files", std::move(files)}};
  if (const auto& kept = source.loss_scale)
    json["loss_scale"] = {{"scale", kept->scale}, {"good_steps", kept->good_steps}, {"hysteresis", kept->hysteresis}};
  if (source.consumed_tokens) json["consumed_tokens"] = *source.consumed_tokens;
  try {
    return seal_manifest(json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::strict));
  } catch (const Json::exception&) {
    fail_user("the config cannot be stored in a checkpoint: it is not UTF-8 text");
  }
}

std::string seal_manifest(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  const std::string ended = std::string(text) + "\n";
  if (is_sealed(ended))
    text.remove_suffix(seal_bytes - 1);
  else if (text.ends_with('}'))
    text.remove_suffix(1);
  return fmt::format("{}{}{}{}", text, seal_begin, checksum_text(text), seal_end);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  check_seal(text, where);
  const Json json = parse_json(text, where);
  require_user(json.is_object() && find(json, "format") == "teratron", "{}: not a manifest of a checkpoint", where);
  const Json& version = find(json, "version");
  require_user(version == 1 || version == 2, "{}: version {}, this program reads versions 1 and 2", where,
               version.is_null() ? "none" : version.dump(-1, ' ', false, Json::error_handler_t::replace));
  require_user(version == 1 || is_sealed(text), "{}: no checksum of it stands at its end: the file was damaged", where);
  Manifest manifest{.version = version.get<int>(), .source = {}, .tensors = {}, .files = {}};
  manifest.source = read_source(json, manifest.version, where);
  manifest.files = read_files(find(json, "files"), manifest.version, where);
  const Json& tensors = find(json, "tensors");
  require_user(tensors.is_object(), "{}: 'tensors' is missing", where);
  for (const auto& [name, tensor] : tensors.items())
    manifest.tensors.emplace(name, TensorReader{manifest.files, manifest.version, where, name}.read(tensor));
  return manifest;
}

}  // namespace tera
