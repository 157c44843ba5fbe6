#include "tera/hf/hf_folder.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/hf/config/hf_config.h"
#include "tera/hf/config/hf_json.h"
#include "tera/hf/config/hf_quantization.h"
#include "tera/models/family_names.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_index_bytes = std::size_t{256} << 20;
constexpr auto single_file = "model.safetensors", index_file = "model.safetensors.index.json";

bool plain_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

// Whether it is a buffer that old versions saved: RoPE's frequencies, GPT-2's masks.
bool is_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

// The common prefix of the names of all tensors but the head: "transformer.", "model.".
std::string base_prefix(const FamilyNames& names) { return names.layer.substr(0, names.layer.find('.') + 1); }

[[noreturn]] void fail_without_weights(const fs::path& folder) {
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (path_exists(folder / pickle))
      fail_user(
          "{}: has {}, a pickle, which can run code when it is read, and no model.safetensors; load it in transformers "
          "and save it again with save_pretrained(DIR, safe_serialization=True)",
          folder.string(), pickle);
  fail_user("{}: has neither {} nor {}", folder.string(), single_file, index_file);
}

double value_at(const StoredTensor& tensor, std::size_t i) {
  const std::byte* from = tensor.bytes.data() + i * size_of(tensor.dtype);
  if (tensor.dtype == DType::f64) {
    double value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  float value = 0;
  to_floats(tensor.dtype, {from, size_of(tensor.dtype)}, {&value, 1});
  return value;
}

// Compares by value if dtypes differ; a few megabytes at a time.
bool equal_floats(const StoredTensor& one, const StoredTensor& other) {
  constexpr std::size_t chunk_elements = std::size_t{1} << 20;  // elements
  if (one.shape != other.shape) return false;
  const auto elements = static_cast<std::size_t>(count(one.shape));
  const std::size_t width = size_of(one.dtype), other_width = size_of(other.dtype);
  for (std::size_t begin = 0; begin < elements; begin += chunk_elements) {
    const std::size_t end = std::min(begin + chunk_elements, elements);
    const auto some = one.bytes.subspan(begin * width, (end - begin) * width);
    const auto others = other.bytes.subspan(begin * other_width, (end - begin) * other_width);
    bool same = one.dtype == other.dtype && std::memcmp(some.data(), others.data(), some.size()) == 0;
    if (one.dtype != other.dtype) {
      same = true;
      for (std::size_t i = begin; i < end; ++i) same = same && value_at(one, i) == value_at(other, i);
    }
    forget_pages(some);
    forget_pages(others);
    if (!same) return false;
  }
  return true;
}

// Gets a copy of the embedding table or head for comparison.
StoredTensor floats_in(const SafetensorsFile& file, const std::string& name) {
  require_user(
      !file.find_float8(name),
      "{}: '{:.200}' is FP8, and there twice: copies of the table of words are compared, and only plain floats "
      "can be; save it in bf16, fp16 or fp32, or once",
      file.path().string(), name);
  const StoredTensor stored = file.get(name);
  require_user(stored.dtype == DType::f64 || is_float(stored.dtype), "{}: '{:.200}' holds {}, not floats",
               file.path().string(), name, name_of(stored.dtype));
  return stored;
}

}  // namespace

bool HfFolder::equal(const Stored& one, const Stored& other) {
  const StoredTensor first = floats_in(*one.file, one.name);
  return equal_floats(first, floats_in(*other.file, other.name));
}

bool is_hf_folder(const fs::path& folder) {
  return path_exists(folder / "config.json") && !path_exists(folder / "manifest.json") &&
         !path_exists(folder / "latest");
}

HfFolder::HfFolder(fs::path folder, Families families)
    : folder_(std::move(folder)),
      config_text_(read_hf_config(folder_)),
      model_(parse_hf_config(config_text_, (folder_ / "config.json").string(), families)) {
  find_files();
  list_stored();
  pair_scales();
  resolve_head();
  resolve_mtp_layers();
  const FamilyNames names = model_.arch->names();
  for (const auto& [name, stored] : stored_)
    if (!add_fused(names, name, stored))
      add(name, *stored.file, stored.name, names.transposed && name.starts_with(names.layer));
}

void HfFolder::find_files() {
  if (path_exists(folder_ / single_file)) {
    files_.push_back(&open(folder_ / single_file));
  } else if (path_exists(folder_ / index_file)) {
    read_index(folder_ / index_file);
  } else {
    fail_without_weights(folder_);
  }
}

void HfFolder::read_index(const fs::path& index) {
  const std::string where = index.string();
  const HfJson json = parse_hf_json(read_whole_file(index, max_index_bytes), where);
  const auto map = json.find("weight_map");
  require_user(map != json.end() && map->is_object(), "{}: weight_map is missing", where);
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    require_user(file.is_string() && plain_name(file.get<std::string>()),
                 "{}: weight_map of '{:.200}' is {:.200}, which is no plain file name", where, tensor, file.dump());
    index_[tensor] = file.get<std::string>();
    names.insert(index_[tensor]);
  }
  require_user(!names.empty(), "{}: weight_map is empty", where);
  for (const std::string& name : names) files_.push_back(&open(folder_ / name));
}

// Lists every tensor of every file under the names of our parameters. Either all names in the folder have the prefix of
// the base model, or none has it.
void HfFolder::list_stored() {
  const FamilyNames names = model_.arch->names();
  const std::string prefix = base_prefix(names), head = names.head + ".weight";
  bool prefixed = false;
  for (const SafetensorsFile* file : files_)
    for (const SafetensorsEntry& entry : file->entries()) prefixed = prefixed || entry.name.starts_with(prefix);
  for (const SafetensorsFile* file : files_) {
    for (const SafetensorsEntry& entry : file->entries()) {
      const auto listed = index_.find(entry.name);
      if (!index_.empty() && (listed == index_.end() || file->path().filename() != listed->second)) continue;
      if (is_buffer(entry.name)) continue;
      const std::string name = prefixed || entry.name == head ? entry.name : prefix + entry.name;
      stored_[name] = {file, entry.name};
    }
  }
  check_index();
}

void HfFolder::check_index() const {
  std::map<std::string, const SafetensorsFile*> by_name;
  for (const SafetensorsFile* file : files_) by_name[file->path().filename().string()] = file;
  for (const auto& [tensor, name] : index_)
    require_user(by_name.at(name)->contains(tensor), "{}: the index says that '{:.200}' is in {}, but it is not",
                 folder_.string(), tensor, name);
}

// Pairs FP8 tensors with their scales, which are not listed as tensors of their own.
void HfFolder::pair_scales() {
  const auto quantization = parse_hf_quantization(config_text_, (folder_ / "config.json").string());
  std::vector<std::string> scales;
  for (const auto& [name, stored] : stored_) {
    const bool float8 = stored.file->find_float8(stored.name).has_value();
    if (!float8) continue;
    require_user(quantization.has_value(),
                 "{}: '{:.200}' is FP8, and config.json has no quantization_config that says how it is scaled",
                 folder_.string(), name);
    const auto scale_of = stored_.find(name + "_scale_inv");
    require_user(scale_of != stored_.end(), "{}: '{:.200}' is FP8, and its scales, '{:.200}_scale_inv', are missing",
                 folder_.string(), name, name);
    scale(*stored.file, stored.name, *scale_of->second.file, scale_of->second.name, *quantization);
    scales.push_back(scale_of->first);
  }
  for (const std::string& name : scales) stored_.erase(name);
}

// The head is the embedding table where the two are tied. Files may have it twice, or only under the name of the head.
void HfFolder::resolve_head() {
  if (model_.untie_embeddings_and_output_weights) return;
  const FamilyNames names = model_.arch->names();
  const auto head = stored_.find(names.head + ".weight");
  if (head == stored_.end()) return;
  const auto table = stored_.find(names.embedding + ".weight");
  if (table == stored_.end()) {
    stored_[names.embedding + ".weight"] = head->second;
  } else if (!equal(head->second, table->second)) {
    fail_user(
        "{}: tie_word_embeddings is true (or absent, which means that for its model_type), but {} and {} differ; set "
        "it to false in config.json to use both",
        folder_.string(), head->first, table->first);
  }
  stored_.erase(names.head + ".weight");
}

// Files of some families have MTP layers after the last layer, whatever config.json says. They have copies of the
// embedding table and the head. Any other tensors of layers after the last are ignored.
void HfFolder::resolve_mtp_layers() {
  const ModelFamily::MtpInFiles mtp = model_.arch->mtp_in_files;
  if (mtp == ModelFamily::MtpInFiles::refused) return;
  const FamilyNames names = model_.arch->names();
  const auto ends_before = [&] { return model_.num_layers + model_.mtp_num_layers; };
  model_.mtp_num_layers = 0;
  while (mtp == ModelFamily::MtpInFiles::kept && model_.mtp_num_layers < max_mtp_layers &&
         stored_.contains(mtp_mark(names, ends_before())))
    ++model_.mtp_num_layers;
  const bool tied = !model_.untie_embeddings_and_output_weights;
  for (std::int64_t layer = model_.num_layers; layer < ends_before(); ++layer) {
    const std::string prefix = names.layer + std::to_string(layer) + ".";
    drop_copy(prefix + names.mtp.embedding + ".weight", names.embedding + ".weight");
    drop_copy(prefix + names.mtp.head + ".weight", (tied ? names.embedding : names.head) + ".weight");
  }
  std::erase_if(stored_, [&](const auto& entry) { return layer_of(names, entry.first) >= ends_before(); });
}

// Drops the copy of a table that an MTP layer shares with the model.
void HfFolder::drop_copy(const std::string& copy, const std::string& original) {
  const auto found = stored_.find(copy), table = stored_.find(original);
  if (found == stored_.end()) return;
  if (table != stored_.end()) copies_.push_back({found->second, table->second});
  stored_.erase(found);
}

void HfFolder::check_copies() const {
  for (const auto& [copy, table] : copies_)
    if (!equal(copy, table))
      fail_user("{}: {} and {} differ, and here layers that predict further ahead share the model's tables",
                folder_.string(), copy.name, table.name);
}

// Adds the parts of a tensor that fuses all experts of a layer, or the router under its name in that format. False: it
// is no such tensor.
bool HfFolder::add_fused(const FamilyNames& names, const std::string& name, const Stored& stored) {
  if (!names.experts || !name.starts_with(names.layer)) return false;
  const ExpertNames& experts = *names.experts;
  const std::size_t end = name.find('.', names.layer.size()) + 1;
  const std::string layer = name.substr(0, end), rest = name.substr(end);
  const std::int64_t count = model_.moe.num_experts, ffn = model_.moe.ffn_hidden_size, hidden = model_.hidden_size;
  if (rest == experts.fused_gate_up) {
    add_each_expert(layer + experts.expert, stored, shape(count, 2 * ffn, hidden), {experts.gate, experts.up});
  } else if (rest == experts.fused_down) {
    add_each_expert(layer + experts.expert, stored, shape(count, hidden, ffn), {experts.down});
  } else if (rest == experts.fused_router + ".weight" && experts.fused_router != experts.router) {
    const std::string router = layer + experts.router + ".weight";
    check_once(router, stored);
    add(router, *stored.file, stored.name, false);
  } else {
    return false;
  }
  return true;
}

// wanted: [E, rows of all parts, columns]; the rows of the parts are concatenated.
void HfFolder::add_each_expert(const std::string& prefix, const Stored& stored, const Shape& wanted,
                               const std::vector<std::string>& parts) {
  const Entry tensor = entry_of(*stored.file, stored.name);
  require_user(tensor.shape == wanted, "{}: '{:.200}' is {}, not {}", stored.file->path().string(), stored.name,
               to_string(tensor.shape), to_string(wanted));
  const std::int64_t rows = wanted[1] / std::ssize(parts);
  std::int64_t first = 0;
  for (std::int64_t expert = 0; expert < wanted[0]; ++expert) {
    for (const std::string& part : parts) {
      const std::string name = prefix + std::to_string(expert) + "." + part + ".weight";
      check_once(name, stored);
      add_rows(name, *stored.file, stored.name, first, rows);
      first += rows;
    }
  }
}

void HfFolder::check_once(const std::string& name, const Stored& stored) const {
  require_user(!stored_.contains(name), "{}: '{:.200}' is there, and in '{:.200}' once more", folder_.string(), name,
               stored.name);
}

}  // namespace tera
