#include "tera/hf/hf_export.h"

#include <fmt/core.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/checkpoint/safetensors_source.h"
#include "tera/config/family.h"
#include "tera/models/family_names.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t elements_per_write = std::int64_t{4} << 20;

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "float64";
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    default: fail("weights are not stored as {}", name_of(dtype));
  }
}

template <class T, class Convert>
void store(std::span<const float> values, std::span<std::byte> out, Convert convert) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T element = convert(values[i]);
    std::memcpy(out.data() + i * sizeof(T), &element, sizeof(T));
  }
}

void convert_elements(DType from, std::span<const std::byte> in, DType to, std::vector<std::byte>& out) {
  std::vector<float> values(in.size() / size_of(from));
  to_floats(from, in, values);
  out.resize(values.size() * size_of(to));
  if (to == DType::f32) return store<float>(values, out, [](float value) { return value; });
  require(to == DType::bf16, "weights are not converted to {}", name_of(to));
  store<BFloat16>(values, out, [](float value) { return to_bf16(value); });
}

struct Shard {
  std::string name;
  std::vector<const ModelTensor*> tensors;
};

// Bytes of a tensor in a file: its data and an upper estimate of its entry in the header.
std::uint64_t bytes_in_file(const ModelTensor& tensor, DType dtype) {
  constexpr std::uint64_t line = 160;
  return static_cast<std::uint64_t>(count(tensor.shape)) * size_of(dtype) + tensor.name.size() + line;
}

ModelShape without_unsupported_mtp(ModelShape model) {
  if (!keeps_mtp_layers(family_of(model))) model.mtp_layers = 0;
  return model;
}

ModelShape as_exported(const ModelShape& full_model) {
  ModelShape model = without_unsupported_mtp(full_model);
  if (adds_expert_bias(model)) model.moe->router.expert_bias = true;
  return model;
}

// The model as published folders have it: with copies of the embedding table and the head in MTP layers, under names of
// these layers, and with expert biases, which are zeros if it was trained without them.
class AsPublished final : public WeightSource {
 public:
  // `model` is the result of as_exported().
  AsPublished(const WeightSource& source, const ModelShape& model) : source_(source), entries_(source.tensors()) {
    for (const ModelTensor& tensor : weights_of(model))
      if (tensor.router_state && entries_.try_emplace(tensor.name, Entry{DType::f32, tensor.shape}).second)
        zeros_.insert(tensor.name);
    const FamilyNames names = family_of(model).names();
    const auto add = [&](const std::string& copy, const std::string& original) {
      entries_[copy + ".weight"] = entries_.at(original + ".weight");
      originals_[copy + ".weight"] = original + ".weight";
    };
    for (std::int64_t layer = model.num_layers; layer < model.all_layers(); ++layer) {
      const std::string prefix = names.layer + std::to_string(layer) + ".";
      add(prefix + names.mtp.embedding, names.embedding);
      add(prefix + names.mtp.head, model.tied_embeddings ? names.embedding : names.head);
    }
  }

  const std::map<std::string, Entry>& tensors() const override { return entries_; }
  void read(const std::string& name, const WeightBox& box, std::span<std::byte> out) const override {
    if (zeros_.contains(name)) {
      std::ranges::fill(out, std::byte{0});
      return;
    }
    const auto original = originals_.find(name);
    source_.read(original == originals_.end() ? name : original->second, box, out);
  }
  std::string where() const override { return source_.where(); }

  // The tensors of the model and the copies of its tables.
  std::vector<ModelTensor> list(const ModelShape& model) const {
    std::vector<ModelTensor> tensors = weights_of(model);
    for (const auto& [copy, original] : originals_) tensors.push_back({.name = copy, .shape = entries_.at(copy).shape});
    std::ranges::sort(tensors, {}, &ModelTensor::name);
    return tensors;
  }

 private:
  const WeightSource& source_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> originals_;  // names of the originals, by the names of their copies
  std::set<std::string> zeros_;
};

class Exporter {
 public:
  Exporter(const WeightSource& source, const ModelShape& model, const HfExportOptions& options)
      : source_(source, model), options_(options), tensors_(source_.list(model)) {
    cut_into_shards();
  }

  DType dtype(const ModelTensor& tensor) const {
    const DType stored = source_.tensors().at(tensor.name).dtype;
    return tensor.router_state ? stored : options_.dtype.value_or(stored);
  }

  // The dtype of all tensors; empty if they differ.
  std::string_view common_dtype() const {
    const auto differs = [&](const ModelTensor& tensor) {
      return !tensor.router_state && dtype(tensor) != dtype(tensors_.front());
    };
    return std::ranges::any_of(tensors_, differs) ? std::string_view() : torch_name(dtype(tensors_.front()));
  }

  HfExportResult write(const fs::path& folder) const {
    HfExportResult result{.files = shards_.size(), .tensors = tensors_.size()};
    for (const Shard& shard : shards_) write_shard(folder, shard);
    for (const ModelTensor& tensor : tensors_)
      result.bytes += static_cast<std::uint64_t>(count(tensor.shape)) * size_of(dtype(tensor));
    if (shards_.size() > 1) write_index(folder, result.bytes);
    return result;
  }

 private:
  void cut_into_shards() {
    constexpr std::uint64_t head = 64;  // bytes of a file before its first tensor entry
    std::uint64_t filled = 0;
    for (const ModelTensor& tensor : tensors_) {
      const std::uint64_t bytes = bytes_in_file(tensor, dtype(tensor));
      if (shards_.empty() || filled + bytes > options_.max_shard_bytes) {
        shards_.emplace_back();
        filled = head;
      }
      shards_.back().tensors.push_back(&tensor);
      filled += bytes;
    }
    for (std::size_t i = 0; i < shards_.size(); ++i)
      shards_[i].name = shards_.size() == 1 ? "model.safetensors"
                                            : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
  }

  void write_shard(const fs::path& folder, const Shard& shard) const {
    std::vector<SafetensorsSpec> specs;
    for (const ModelTensor* tensor : shard.tensors)
      specs.push_back({tensor->name, dtype(*tensor), file_shape(*tensor)});
    SafetensorsWriter writer(folder / shard.name, specs);
    for (const ModelTensor* tensor : shard.tensors) write_tensor(source_, *tensor, dtype(*tensor), writer);
    writer.finish();
  }

  void write_index(const fs::path& folder, std::uint64_t bytes) const {
    nlohmann::ordered_json index;
    index["metadata"]["total_size"] = bytes;
    for (const Shard& shard : shards_)
      for (const ModelTensor* tensor : shard.tensors) index["weight_map"][tensor->name] = shard.name;
    write_file_atomically(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  }

  AsPublished source_;
  const HfExportOptions& options_;
  std::vector<ModelTensor> tensors_;
  std::vector<Shard> shards_;
};

}  // namespace

Shape file_shape(const ModelTensor& tensor) {
  return tensor.transposed ? shape(tensor.shape[1], tensor.shape[0]) : tensor.shape;
}

void write_tensor(const WeightSource& source, const ModelTensor& tensor, DType dtype, SafetensorsWriter& writer) {
  const DType stored = source.tensors().at(tensor.name).dtype;
  const Shape in_file = file_shape(tensor);
  const WeightBox full = full_box(tensor.shape);
  const std::int64_t width = in_file.rank == 2 ? in_file[1] : 1;
  const std::int64_t step = std::max<std::int64_t>(elements_per_write / std::max<std::int64_t>(width, 1), 1);
  std::vector<std::byte> raw, transposed_bytes, converted;
  for (std::int64_t begin = 0; begin < in_file[0]; begin += step) {
    const std::int64_t end = std::min(begin + step, in_file[0]);
    WeightBox box = full;
    (tensor.transposed ? box.column_begin : box.row_begin) = begin;
    (tensor.transposed ? box.column_end : box.row_end) = end;
    raw.resize(static_cast<std::size_t>(box.elements()) * size_of(stored));
    source.read(tensor.name, box, raw);
    if (tensor.transposed) {
      transposed_bytes.resize(raw.size());
      transpose(raw, box.rows(), box.columns(), size_of(stored), transposed_bytes);
      raw.swap(transposed_bytes);
    }
    if (dtype != stored) convert_elements(stored, raw, dtype, converted);
    writer.write(tensor.name, dtype == stored ? raw : converted);
  }
}

NewFolder::NewFolder(fs::path output) : output_(std::move(output).lexically_normal()) {
  if (!output_.has_filename()) output_ = output_.parent_path();
  std::error_code error;
  require_user(!path_exists(output_) || (fs::is_directory(output_, error) && fs::is_empty(output_, error) && !error),
               "{}: is there already and not an empty folder; nothing is overwritten", output_.string());
  if (output_.has_parent_path()) fs::create_directories(output_.parent_path(), error);
  std::string staging = output_.string() + ".writing-XXXXXX";
  const bool made = !error && ::mkdtemp(staging.data()) != nullptr;
  require_user(made, "cannot make the folder {}: {}", output_.string(),
               error ? error.message() : std::generic_category().message(errno));
  staging_ = staging;
  fs::permissions(staging_, fs::perms::all & ~(fs::perms::group_write | fs::perms::others_write), error);
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!staging_.empty()) fs::remove_all(staging_, ignored);
}

void NewFolder::finish() {
  rename_path(staging_, output_);
  staging_.clear();
  sync_parent_folder(output_);
}

namespace {

// The files of an export other than weights and config.json, by name.
std::map<std::string, std::string> small_files(const HfExportOptions& options) {
  if (!options.tokenizer) {
    std::map<std::string, std::string> files;
    for (const std::string& name : options.carried.names()) files[name] = options.carried.read(name);
    return files;
  }
  std::map<std::string, std::string> files = options.tokenizer->files;
  const HfTokenIds& ids = options.tokenizer->ids;
  nlohmann::ordered_json generation;
  if (ids.bos >= 0) generation["bos_token_id"] = ids.bos;
  if (ids.eos >= 0) generation["eos_token_id"] = ids.eos;
  if (ids.pad >= 0) generation["pad_token_id"] = ids.pad;
  if (!generation.empty()) files["generation_config.json"] = generation.dump(2) + "\n";
  return files;
}

}  // namespace

bool keeps_mtp_layers(const ModelFamily& family) { return family.mtp_in_files == ModelFamily::MtpInFiles::kept; }

bool adds_expert_bias(const ModelShape& model) {
  return family_of(model).needs_expert_bias && model.moe && model.moe->router.score == ScoreFunction::sigmoid &&
         !model.moe->router.expert_bias;
}

std::string why_no_hf_form(const ModelShape& model, const ModelConfig& written) {
  if (!written.hf.empty()) return {};
  try {
    format_hf_config(as_exported(model), {.source = {}, .dtype = {}, .written = &written});
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

HfExportResult export_hf(const WeightSource& source, const ModelShape& full_model, const fs::path& output,
                         const HfExportOptions& options) {
  check_tensors(source, without_unsupported_mtp(full_model));
  const ModelShape model = as_exported(full_model);
  const Exporter exporter(source, model, options);
  const std::string from = options.carried.has("config.json") ? options.carried.read("config.json") : std::string();
  HfConfigOptions config{.source = from, .dtype = exporter.common_dtype(), .written = options.written};
  if (options.tokenizer) config.tokens = options.tokenizer->ids;
  std::map<std::string, std::string> files = small_files(options);
  files["config.json"] = format_hf_config(model, config);
  NewFolder folder(output);
  const HfExportResult result = exporter.write(folder.path());
  for (const auto& [name, content] : files) write_file_atomically(folder.path() / name, content);
  folder.finish();
  return result;
}

}  // namespace tera
