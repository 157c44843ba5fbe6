#include "tera/hf/hf_import.h"

#include <algorithm>

#include "tera/base/checksum.h"
#include "tera/base/file.h"
#include "tera/base/mapped_file.h"
#include "tera/checkpoint/checkpoint_search.h"
#include "tera/checkpoint/manifest.h"
#include "tera/checkpoint/safetensors_source.h"
#include "tera/hf/hf_export.h"
#include "tera/hf/hf_files.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr auto weights_file = "rank_00000.safetensors";

// The manifest entry of a written file; its pages are released as they are read.
ManifestFile listed(const fs::path& path) {
  constexpr std::size_t chunk_bytes = std::size_t{16} << 20;
  const MappedFile file(path);
  const std::span<const std::byte> all = file.bytes();
  ManifestFile entry{.name = path.filename().string(), .bytes = all.size(), .crc32c = 0};
  for (std::size_t begin = 0; begin < all.size(); begin += chunk_bytes) {
    const auto some = all.subspan(begin, std::min(chunk_bytes, all.size() - begin));
    entry.crc32c = crc32c(some, entry.crc32c);
    forget_pages(some);
  }
  return entry;
}

// Writes weights in [out,in] order. f64 is rounded to f32, because checkpoints have no f64.
void write_weights(const HfFolder& source, const ModelShape& model, const fs::path& path, Manifest& manifest) {
  std::vector<ModelTensor> tensors = weights_of(model);
  std::vector<SafetensorsSpec> specs;
  for (ModelTensor& tensor : tensors) {
    tensor.transposed = false;
    const DType stored = source.tensors().at(tensor.name).dtype;
    specs.push_back({tensor.name, stored == DType::f64 ? DType::f32 : stored, tensor.shape});
  }
  SafetensorsWriter writer(path, specs);
  for (std::size_t i = 0; i < tensors.size(); ++i) write_tensor(source, tensors[i], specs[i].dtype, writer);
  writer.finish();
  const SafetensorsFile written(path);
  for (const SafetensorsSpec& spec : specs) {
    const auto entry = std::ranges::find(written.entries(), spec.name, &SafetensorsEntry::name);
    manifest.tensors[spec.name] = {
        .dtype = spec.dtype,
        .shape = spec.shape,
        .pieces = {{.file = 0, .offset = written.data_offset() + entry->begin, .slice = full_slice(spec.shape)}}};
  }
  manifest.files.push_back(listed(path));
}

}  // namespace

fs::path import_hf(const HfFolder& source, const ModelShape& model, const std::string& config_yaml,
                   const fs::path& root) {
  check_tensors(source, model);
  Manifest manifest{.source = {.step = 0, .config_yaml = config_yaml}};
  static_cast<void>(format_manifest(manifest));  // throws before anything is written if the config is invalid
  NewFolder folder(root);
  const fs::path step = step_folder(folder.path(), 0);
  fs::create_directories(step);
  write_weights(source, model, step / weights_file, manifest);
  const HfFiles files(source.folder());
  for (const std::string& name : files.names()) {
    write_file_atomically(step / name, files.read(name));
    manifest.files.push_back(listed(step / name));
  }
  write_file_atomically(step / CheckpointNames::manifest, format_manifest(manifest));
  write_file_atomically(folder.path() / CheckpointNames::latest, step.filename().string() + "\n");
  folder.finish();
  return root / step.filename();
}

}  // namespace tera
