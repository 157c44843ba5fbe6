// tera inspect: what a path holds, checked, as a table or as JSON.

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/tokenizer_options.h"
#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/joined.h"
#include "tera/base/log.h"
#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/safetensors.h"
#include "tera/config/checkpoint_path.h"
#include "tera/config/family.h"
#include "tera/data/dataset_report.h"
#include "tera/hf/hf_describe.h"
#include "tera/plan/memory_plan.h"
#include "tera/setup/load.h"
#include "tera/tokenizer/huggingface/token_json.h"

namespace tera {
namespace {

namespace fs = std::filesystem;
using Rows = nlohmann::ordered_json;  // the findings, in the order in which they are printed

constexpr std::size_t max_json_bytes = std::size_t{512} << 20;
constexpr std::int64_t shown_tokens = 64;
constexpr int bar_columns = 40;

struct InspectArguments {
  std::string path;
  TokenizerArguments tokenizer;
  bool json = false, verify = false;
};

struct Findings {
  Rows rows;
  std::string picture;  // below the table
  std::string problem;  // why it cannot be used
};

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// The beginning of the first document that is not empty.
void add_first_tokens(const IndexedDataset& data, const Tokenizer* tokenizer, Rows& rows) {
  std::int64_t sequence = 0;
  while (sequence < data.sequences() && data.lengths()[static_cast<std::size_t>(sequence)] == 0) ++sequence;
  if (sequence == data.sequences()) return;
  const std::int64_t length = data.lengths()[static_cast<std::size_t>(sequence)];
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(length, shown_tokens)));
  data.read(sequence, 0, tokenizer ? tokenizer->vocab_size() : std::int64_t{1} << 31, ids);
  rows["first_tokens"] = ids;
  if (tokenizer) rows["first_text"] = tokenizer->decode(ids);
}

void add_ids(const IndexedDataset& data, const InspectArguments& options, Rows& rows) {
  const auto tokenizer = options.tokenizer.given() ? options.tokenizer.make() : nullptr;
  const IdRange ids = id_range(data);
  require_user(ids.smallest >= 0, "{}.bin: a token id is {}; none may be below 0", data.prefix(), ids.smallest);
  constexpr std::int64_t max_id = std::numeric_limits<std::int32_t>::max();
  require_user(ids.largest <= max_id, "{}.bin: a token id is {}; none may be above {}", data.prefix(), ids.largest,
               max_id);
  if (tokenizer)
    require_user(ids.largest < tokenizer->vocab_size(),
                 "{}.bin: the largest token id is {}, outside the vocabulary of {} that this tokenizer has",
                 data.prefix(), ids.largest, tokenizer->vocab_size());
  rows["largest_id"] = ids.largest < 0 ? Rows(nullptr) : Rows(ids.largest);
  add_first_tokens(data, tokenizer.get(), rows);
}

Findings inspect_dataset(const std::string& prefix, const InspectArguments& options) {
  const IndexedDataset data(prefix);
  const LengthHistogram lengths = document_lengths(data);
  Findings found;
  found.rows = {{"kind", "dataset"},
                {"path", prefix},
                {"documents", data.documents()},
                {"sequences", data.sequences()},
                {"tokens", data.tokens()},
                {"dtype", name_of(data.token_type())},
                {"bytes", static_cast<std::uint64_t>(data.tokens()) * size_of(data.token_type())},
                {"shortest", lengths.shortest},
                {"mean", lengths.mean},
                {"longest", lengths.longest}};
  if (is_integer(data.token_type())) add_ids(data, options, found.rows);
  Rows bins = Rows::array();
  for (const auto& bin : lengths.bins)
    bins.push_back({{"from", bin.first}, {"to", bin.last}, {"documents", bin.documents}});
  found.rows["lengths"] = std::move(bins);
  if (!lengths.bins.empty()) found.picture = draw(lengths, bar_columns);
  return found;
}

// Adds the numbers of tensors and parameters of a list of safetensors files.
void add_tensors(const std::vector<fs::path>& files, Rows& rows) {
  std::int64_t tensors = 0, parameters = 0;
  std::uint64_t bytes = 0;
  std::set<std::string> dtypes;
  for (const fs::path& path : files) {
    const SafetensorsFile file(path);
    for (const SafetensorsEntry& entry : file.entries()) {
      std::int64_t count = 1;
      for (const std::int64_t size : entry.shape) count *= size;
      parameters += count;
      bytes += entry.end - entry.begin;
      std::string dtype = entry.dtype_name;  // "F32" becomes "f32", as everywhere else
      std::ranges::transform(dtype, dtype.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      dtypes.insert(std::move(dtype));
      ++tensors;
    }
  }
  rows["files"] = files.size();
  rows["tensors"] = tensors;
  rows["parameters"] = parameters;
  rows["dtype"] = joined(dtypes, ", ");
  rows["bytes"] = bytes;
}

std::vector<fs::path> safetensors_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// "bf16, f32": what the two moments of Adam are stored in; empty without them.
std::string moment_types(const Manifest& manifest) {
  std::string types;
  for (const std::string_view moment : {"optimizer.exp_avg.", "optimizer.exp_avg_sq."}) {
    const auto found =
        std::ranges::find_if(manifest.tensors, [&](const auto& t) { return t.first.starts_with(moment); });
    if (found != manifest.tensors.end())
      types += fmt::format("{}{}", types.empty() ? "" : ", ", name_of(found->second.dtype));
  }
  return types;
}

// Adds what a checkpoint's manifest lists; its files exist with their sizes, or it would not have been opened.
void add_manifest(const Manifest& manifest, Rows& rows) {
  std::int64_t parameters = 0;
  std::uint64_t bytes = 0;
  std::set<std::string_view> dtypes;
  bool optimizer = false;
  for (const auto& [name, tensor] : manifest.tensors) {
    const bool state = name.starts_with("optimizer.");
    optimizer = optimizer || state;
    if (state) continue;
    parameters += count(tensor.shape);
    dtypes.insert(name_of(tensor.dtype));
  }
  for (const ManifestFile& file : manifest.files) bytes += file.bytes;
  rows["samples"] = manifest.source.consumed_samples;
  if (manifest.source.loss_scale) rows["loss_scale"] = manifest.source.loss_scale->scale;
  rows["files"] = manifest.files.size();
  rows["tensors"] = manifest.tensors.size();
  rows["parameters"] = parameters;
  rows["dtype"] = joined(dtypes, ", ");
  rows["optimizer"] = optimizer;
  if (const std::string moments = moment_types(manifest); !moments.empty()) rows["moments"] = moments;
  rows["bytes"] = bytes;
}

Findings inspect_checkpoint(const fs::path& path, bool verify) {
  const Checkpoint checkpoint(path);
  const LoadedConfig loaded =
      load_config_text(checkpoint.config_yaml(), (checkpoint.folder() / "manifest.json").string());
  Findings found;
  found.rows = {{"kind", "checkpoint"}, {"path", checkpoint.folder().string()}, {"step", checkpoint.step()}};
  if (loaded.config.model.arch) found.rows["arch"] = loaded.config.model.arch->name;
  add_manifest(checkpoint.manifest(), found.rows);
  if (verify) checkpoint.verify();
  if (verify) checkpoint.check_headers();
  if (verify) found.rows["checksums"] = checkpoint.manifest().version == 1 ? "none in version 1" : "good";
  return found;
}

void add_tokenizer(const TokenizerOptions& options, Rows& rows) {
  const auto tokenizer = make_tokenizer(options);
  const auto id = [](std::int32_t value) { return value < 0 ? Rows(nullptr) : Rows(value); };
  rows["tokenizer_type"] = name_of(options.type);
  rows["vocab_size"] = tokenizer->vocab_size();
  rows["eod"] = id(tokenizer->eod());
  rows["bos"] = id(tokenizer->bos());
  rows["pad"] = id(tokenizer->pad());
  rows["unk"] = id(tokenizer->unk());
}

// Describes a folder whose model tera does not support.
Rows describe_unknown(const fs::path& folder) {
  Rows rows{{"kind", "Hugging Face folder"}, {"path", folder.string()}};
  if (path_exists(folder / "config.json")) {
    const nlohmann::json config = read_json_file(folder / "config.json", max_json_bytes);
    for (const char* key : {"model_type", "num_hidden_layers", "hidden_size", "vocab_size", "torch_dtype"})
      if (config.is_object() && config.contains(key)) rows[fmt::format("config.{}", key)] = config[key];
  }
  if (const auto files = safetensors_in(folder); !files.empty()) add_tensors(files, rows);
  return rows;
}

Findings inspect_hugging_face(const fs::path& folder, bool verify) {
  Findings found;
  try {
    found.rows = describe_hf_folder(folder);
    if (verify) found.rows["checksums"] = "none in such folders; names, shapes and sizes were compared";
  } catch (const UserError& problem) {
    found.rows = describe_unknown(folder);
    if (path_exists(folder / "config.json")) found.rows["problem"] = found.problem = problem.what();
  }
  if (path_exists(folder / "tokenizer.json"))
    add_tokenizer({.type = TokenizerKind::hugging_face, .model = folder.string()}, found.rows);
  return found;
}

// None if the file is no tokenizer.
std::optional<TokenizerKind> tokenizer_kind(const fs::path& path) {
  if (path.extension() == ".model") return TokenizerKind::sentence_piece;
  if (path.extension() == ".tiktoken") return TokenizerKind::tik;
  if (path.extension() != ".json") return std::nullopt;
  const nlohmann::json content = read_json_file(path, max_json_bytes);
  if (content.is_array()) return TokenizerKind::tik;
  if (content.is_object() && content.contains("model")) return TokenizerKind::hugging_face;
  return std::nullopt;
}

Findings inspect_tokenizer(const std::string& path, TokenizerKind kind, const InspectArguments& options) {
  TokenizerOptions tokenizer;
  if (options.tokenizer.given()) tokenizer = options.tokenizer.options();
  if (!options.tokenizer.given()) tokenizer.type = kind;
  tokenizer.model = path;
  Findings found;
  found.rows = {{"kind", "tokenizer"}, {"path", path}};
  add_tokenizer(tokenizer, found.rows);
  return found;
}

Findings inspect_folder(const fs::path& path, bool verify) {
  if (holds_checkpoints(path)) return inspect_checkpoint(path, verify);
  if (path_exists(path / "config.json") || path_exists(path / "tokenizer.json") || !safetensors_in(path).empty())
    return inspect_hugging_face(path, verify);
  const std::string why = why_no_checkpoint(path);
  require_user(why.empty(), "{}: {}", path.string(), why);
  fail_user("{}: no checkpoint (manifest.json, latest) and no Hugging Face folder (config.json, tokenizer.json)",
            path.string());
}

Findings inspect(const InspectArguments& options) {
  fs::path path = options.path;
  require_user(!options.verify || !path_exists(path) || is_folder(path),
               "--verify {}: checksums are in checkpoints; this is no folder", options.path);
  if (path.extension() == ".idx" || path.extension() == ".bin")
    return inspect_dataset(path.replace_extension().string(), options);
  if (path_exists(options.path + ".idx")) return inspect_dataset(options.path, options);
  if (is_folder(path)) return inspect_folder(path, options.verify);
  if (!path_exists(path)) {
    dataset_prefix(options.path);  // throws, with a hint where it knows what was meant
    fail_user("{}: there is no such file or folder, and no dataset {}.idx", options.path, options.path);
  }
  if (path.extension() == ".safetensors") {
    Findings found;
    found.rows = {{"kind", "tensors"}, {"path", options.path}};
    add_tensors({path}, found.rows);
    return found;
  }
  if (const auto kind = tokenizer_kind(path)) return inspect_tokenizer(options.path, *kind, options);
  fail_user(
      "{}: not known; it may be a dataset's prefix, a checkpoint, a Hugging Face folder, a tokenizer "
      "(tokenizer.json, .model, .tiktoken) or a .safetensors file",
      options.path);
}

// Names of files need not be UTF-8.
std::string dump(const Rows& value) { return value.dump(-1, ' ', false, Rows::error_handler_t::replace); }

// Numbers and names unchanged, texts as JSON strings: they may contain anything.
std::string cell(const std::string& key, const Rows& value) {
  if (key == "bytes") return format_bytes(value.get<std::size_t>());
  if (key == "mean") return fmt::format("{:.1f}", value.get<double>());
  if (value.is_string() && key != "first_text") return value.get<std::string>();
  if (value.is_null()) return "none";
  return dump(value);
}

void print_table(const Findings& found) {
  Log log;
  std::size_t width = 0;
  for (const auto& [key, value] : found.rows.items()) width = std::max(width, key.size());
  for (const auto& [key, value] : found.rows.items())
    if (key != "lengths" && key != "problem") log.info("{:{}}  {}", key, width, cell(key, value));
  if (!found.picture.empty()) log.info("\n{}", std::string_view(found.picture).substr(0, found.picture.size() - 1));
}

void run_inspect(const InspectArguments& options) {
  const Findings found = inspect(options);
  if (options.json)
    fmt::print("{}\n", dump(found.rows));
  else
    print_table(found);
  std::fflush(stdout);
  require_user(found.problem.empty(), "{}", found.problem);
}

}  // namespace

void add_inspect_command(Command app) {
  auto options = std::make_shared<InspectArguments>();
  Command command = app.add_subcommand("inspect", "what is this: dataset, checkpoint, tokenizer, Hugging Face folder");
  command.add_option("path", options->path, "a file, a folder, or the prefix of a dataset")
      .required()
      .type_name("PATH");
  command.add_flag("--json", options->json, "as one line of JSON");
  command.add_flag("--verify", options->verify, "of a checkpoint: read every file again and check its checksum");
  options->tokenizer.add_to(command);
  command.callback([options] { run_inspect(*options); });
}

}  // namespace tera
