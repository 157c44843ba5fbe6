#include "tera/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string_view>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/checkpoint/gather_weights.h"
#include "tera/checkpoint/safetensors.h"
#include "tera/nn/params.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_manifest_bytes = std::size_t{64} << 20, max_carried_bytes = std::size_t{1} << 30;
constexpr auto weights_file = "model.safetensors", manifest_file = "manifest.json", latest_file = "latest";
constexpr auto writing_suffix = ".writing", old_suffix = ".old";

// From [rows,columns] to [columns,rows].
std::vector<float> transpose(std::span<const float> in, std::int64_t rows, std::int64_t columns) {
  std::vector<float> out(in.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      out[static_cast<std::size_t>(c * rows + r)] = in[static_cast<std::size_t>(r * columns + c)];
  return out;
}

Shape stored_shape(const ModelTensor& tensor) {
  return tensor.transposed ? shape(tensor.shape[1], tensor.shape[0]) : tensor.shape;
}

std::vector<SafetensorsSpec> stored_tensors(std::span<const ModelTensor> model) {
  std::vector<SafetensorsSpec> tensors;
  for (const ModelTensor& tensor : model) tensors.push_back({tensor.name, DType::f32, stored_shape(tensor)});
  return tensors;
}

void write_weights(SafetensorsWriter& writer, GatherWeights& weights) {
  weights.each([&](const ModelTensor& tensor, std::span<const float> values) {
    if (tensor.transposed) {
      const std::vector<float> turned = transpose(values, tensor.shape[0], tensor.shape[1]);
      writer.write(tensor.name, std::as_bytes(std::span(turned)));
    } else {
      writer.write(tensor.name, std::as_bytes(values));
    }
  });
  writer.finish();
}

std::vector<std::int64_t> dims_of(const Shape& shape) { return {shape.dim.begin(), shape.dim.begin() + shape.rank}; }

using FileSizes = std::map<std::string, std::uint64_t>;

std::string make_manifest(const CheckpointSource& source, const std::vector<SafetensorsSpec>& tensors,
                          FileSizes files) {
  Manifest manifest{.source = source, .tensors = {}, .files = std::move(files)};
  for (const auto& tensor : tensors)
    manifest.tensors[tensor.name] = {
        .dtype = std::string(name_of(tensor.dtype)), .shape = dims_of(tensor.shape), .file = weights_file};
  return format_manifest(manifest);
}

// One that is gone since the run began is no reason to lose the weights.
FileSizes carry_files(const fs::path& folder, std::span<const fs::path> files) {
  FileSizes sizes;
  for (const fs::path& file : files) {
    if (!path_exists(file)) continue;
    const std::string content = read_whole_file(file, max_carried_bytes);
    write_file_atomically(folder / file.filename(), content);
    sizes[file.filename().string()] = content.size();
  }
  return sizes;
}

// The manifest's text comes first: what it cannot say is known before any data is written. Its file comes last: where
// there is one, all is there and synced.
void write_files(const fs::path& folder, const CheckpointSource& source, GatherWeights& weights) {
  const std::vector<SafetensorsSpec> tensors = stored_tensors(weights.tensors());
  SafetensorsWriter writer(folder / weights_file, tensors);
  FileSizes files = carry_files(folder, source.carried);
  files[weights_file] = writer.file_bytes();
  const std::string manifest = make_manifest(source, tensors, std::move(files));
  write_weights(writer, weights);
  write_file_atomically(folder / manifest_file, manifest);
}

fs::path with_suffix(fs::path path, const char* suffix) { return path += suffix; }

// From here on `beside` is complete and is not deleted, whatever happens.
void publish(const fs::path& beside, const fs::path& folder) {
  const fs::path aside = with_suffix(folder, old_suffix);
  std::error_code ignored;
  try {
    const bool replaces = path_exists(folder);
    if (replaces) {
      fs::remove_all(aside, ignored);  // of an earlier crash, and older than `folder`
      rename_path(folder, aside);
    }
    try {
      rename_path(beside, folder);
    } catch (const UserError&) {
      if (replaces) fs::rename(aside, folder, ignored);
      throw;
    }
    sync_parent_folder(folder);
  } catch (const UserError& error) {
    fail_user("{}; the new checkpoint is complete in {} and can be used from there", error.what(), beside.string());
  }
  write_file_atomically(folder.parent_path() / latest_file, folder.filename().string() + "\n");
  fs::remove_all(aside, ignored);
}

bool is_checkpoint(const fs::path& folder) { return path_exists(folder / manifest_file); }

// What an earlier crash left is removed, unless it is a whole checkpoint and the only one of its step.
void make_room(const fs::path& beside, const fs::path& folder) {
  std::error_code error;
  if (is_checkpoint(beside) && !path_exists(folder)) fs::rename(beside, folder, error);
  fs::remove_all(beside, error);
  if (!error) fs::create_directories(beside, error);
  require_user(!error, "cannot make the folder {}: {}", beside.string(), error.message());
}

// A crash while a checkpoint was replaced may have left a complete one under another name.
[[noreturn]] void fail_incomplete(const fs::path& folder) {
  const std::string root = folder.parent_path().string(), name = folder.filename().string();
  for (const char* suffix : {writing_suffix, old_suffix})
    if (is_checkpoint(with_suffix(folder, suffix)))
      fail_user("{}: 'latest' names {}, which is not complete, but {}{} is: rename that to {}, or name it directly",
                root, name, name, suffix, name);
  fail_user("{}: 'latest' names {}, which is not complete", root, name);
}

fs::path resolve_folder(const fs::path& path) {
  std::error_code ignored;
  require_user(path_exists(path) && fs::is_directory(path, ignored), "{}: there is no such folder", path.string());
  if (is_checkpoint(path)) return path;
  require_user(path_exists(path / latest_file),
               "{}: neither a checkpoint (no manifest.json) nor a folder of checkpoints (no latest)", path.string());
  std::string name = read_whole_file(path / latest_file, 256);
  while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
  require_user(!name.empty() && name.find('/') == std::string::npos && name[0] != '.',
               "{}: 'latest' names no folder here: '{}'", path.string(), name);
  if (!is_checkpoint(path / name)) fail_incomplete(path / name);
  return path / name;
}

// Nothing outside the folder is read in its name.
void check_is_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  require_user(!error, "cannot open {}: {}", path.string(), error.message());
  require_user(!fs::is_symlink(status), "{} is a symbolic link; a checkpoint holds its files itself", path.string());
  require_user(fs::is_regular_file(status), "{} is not a file", path.string());
}

void check_file(const fs::path& path, std::uint64_t listed) {
  check_is_file(path);
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  require_user(!error, "cannot open {}: {}", path.string(), error.message());
  require_user(bytes == listed, "{} has {} bytes, but the manifest says {}", path.string(), bytes, listed);
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path file = folder / manifest_file;
  check_is_file(file);
  Manifest manifest = parse_manifest(read_whole_file(file, max_manifest_bytes), file.string());
  for (const auto& [name, bytes] : manifest.files) check_file(folder / name, bytes);
  return manifest;
}

// A file holds what the manifest says is in it, and nothing else.
void check_entries(const Manifest& manifest, const SafetensorsFile& file) {
  for (const auto& entry : file.entries()) {
    const auto tensor = manifest.tensors.find(entry.name);
    require_user(tensor != manifest.tensors.end() && file.path().filename() == tensor->second.file,
                 "{}: '{:.200}' is not in the manifest", file.path().string(), entry.name);
  }
}

void load_part(const SafetensorsFile& file, const Param& param, const Part& part, Ops& ops) {
  const StoredTensor stored = file.get(part.name);
  const Shape needed = stored_shape({part.name, part.global, part.transposed});
  if (stored.shape != needed)
    fail_user("{}: '{}' is {}, the model needs {}", file.path().string(), part.name, to_string(stored.shape),
              to_string(needed));
  write_part(ops, param, part, to_model_layout(file.read_floats(part.name), part));
}

}  // namespace

fs::path save_checkpoint(const fs::path& root, const CheckpointSource& source, const ParamStore& params, Ops& ops) {
  GatherWeights weights(params, ops);
  return save_checkpoint(root, source, weights);
}

fs::path save_checkpoint(const fs::path& root, const CheckpointSource& source, GatherWeights& weights) {
  const fs::path folder = root / fmt::format("step_{:08d}", source.step);
  if (!weights.first()) {
    weights.each([](const ModelTensor&, std::span<const float>) {});
    return folder;
  }
  const fs::path beside = with_suffix(folder, writing_suffix);
  make_room(beside, folder);
  try {
    write_files(beside, source, weights);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    throw;
  }
  publish(beside, folder);
  return folder;
}

Checkpoint::Checkpoint(const fs::path& path) : folder_(resolve_folder(path)), manifest_(read_manifest(folder_)) {}

void Checkpoint::load_weights(ParamStore& params, Ops& ops) const { load_listed(params, ops, list_tensors(params)); }

void Checkpoint::load_weights(ParamStore& params, Ops& ops, const ModelShape& model) const {
  load_listed(params, ops, list_tensors(model));
}

void Checkpoint::load_listed(ParamStore& params, Ops& ops, std::span<const ModelTensor> model) const {
  require(params.rules().shares == 1, "weights are loaded where ranks keep them whole, not into shares");
  const std::string where = (folder_ / manifest_file).string();
  std::map<std::string, SafetensorsFile> files;
  for (const auto& tensor : manifest_.tensors) {
    const std::string& name = tensor.second.file;
    if (!files.contains(name)) check_entries(manifest_, files.try_emplace(name, folder_ / name).first->second);
  }
  std::set<std::string_view> expected;
  for (const ModelTensor& tensor : model) expected.insert(tensor.name);
  for (const Param* param : params.by_name()) {
    for (const auto& part : param->spec.parts) {
      const auto tensor = manifest_.tensors.find(part.name);
      require_user(tensor != manifest_.tensors.end(), "{} has no tensor '{}'", where, part.name);
      const SafetensorsFile& file = files.at(tensor->second.file);
      const StoredTensor stored = file.get(part.name);
      require_user(name_of(stored.dtype) == tensor->second.dtype && dims_of(stored.shape) == tensor->second.shape,
                   "{}: '{}' is {}{}, which is not what the manifest says", file.path().string(), part.name,
                   name_of(stored.dtype), to_string(stored.shape));
      load_part(file, *param, part, ops);
    }
  }
  for (const auto& tensor : manifest_.tensors)
    require_user(expected.contains(tensor.first), "{}: '{:.200}' is not a tensor of this model", where, tensor.first);
}

std::vector<float> to_model_layout(std::vector<float> values, const Part& part) {
  return part.transposed ? transpose(values, part.global[1], part.global[0]) : std::move(values);
}

void load_weights(const SafetensorsFile& file, ParamStore& params, Ops& ops) {
  for (const Param* param : params.by_name())
    for (const auto& part : param->spec.parts) load_part(file, *param, part, ops);
}

}  // namespace tera
