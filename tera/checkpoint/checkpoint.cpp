#include "tera/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tera/base/error.h"
#include "tera/checkpoint/checkpoint_search.h"
#include "tera/checkpoint/file_pass.h"
#include "tera/checkpoint/rank_file.h"
#include "tera/checkpoint/safetensors.h"
#include "tera/nn/params.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr int max_tries = 20;
constexpr auto between_tries = std::chrono::milliseconds(20);

// Transposes [rows,columns] to [columns,rows].
std::vector<float> transpose(std::span<const float> in, std::int64_t rows, std::int64_t columns) {
  std::vector<float> out(in.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      out[static_cast<std::size_t>(c * rows + r)] = in[static_cast<std::size_t>(r * columns + c)];
  return out;
}

void load_part(const SafetensorsFile& file, const Param& param, const Part& part, Ops& ops) {
  const StoredTensor stored = file.get(part.name);
  const Shape needed = part.transposed ? shape(part.global[1], part.global[0]) : part.global;
  if (stored.shape != needed)
    fail_user("{}: '{}' is {}, the model needs {}", file.path().string(), part.name, to_string(stored.shape),
              to_string(needed));
  write_part(ops, param, part, to_model_layout(file.read_floats(part.name), part));
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& path) {
  for (int i = 1;; ++i) {
    try {
      resolve(path);
      break;
    } catch (const UserError& error) {
      // A run that saves there may just have replaced or removed what `latest` named.
      if (i < max_tries && is_locked(path)) {
        std::this_thread::sleep_for(between_tries);
        continue;
      }
      const auto before = folder_.empty() ? std::nullopt : complete_before(folder_);
      fail_user("{}{}", error.what(), before ? fmt::format("; {} is complete", before->string()) : "");
    }
  }
  if (manifest_.version == 1) read_version_1();
}

void Checkpoint::resolve(const fs::path& path) {
  folder_ = resolve_checkpoint(path);
  manifest_ = read_manifest(folder_);
}

// Version 1 has the offsets of tensors in the headers of the files; a file holds exactly the tensors that the manifest
// lists.
void Checkpoint::read_version_1() {
  for (std::size_t i = 0; i < manifest_.files.size(); ++i) {
    if (std::ranges::none_of(manifest_.tensors, [&](const auto& tensor) { return tensor.second.pieces[0].file == i; }))
      continue;  // a file without tensors, such as tokenizer.json
    const SafetensorsFile file(folder_ / manifest_.files[i].name);
    std::size_t found = 0;
    for (const SafetensorsEntry& entry : file.entries()) {
      const auto tensor = manifest_.tensors.find(entry.name);
      require_user(tensor != manifest_.tensors.end() && tensor->second.pieces[0].file == i,
                   "{}: '{:.200}' is not in the manifest", file.path().string(), entry.name);
      const StoredTensor stored = file.get(entry.name);
      require_user(stored.dtype == tensor->second.dtype && stored.shape == tensor->second.shape,
                   "{}: '{:.200}' is {}{}, which is not what the manifest says", file.path().string(), entry.name,
                   name_of(stored.dtype), to_string(stored.shape));
      tensor->second.pieces[0].offset = file.data_offset() + entry.begin;
      ++found;
    }
    for (const auto& [name, tensor] : manifest_.tensors)
      require_user(tensor.pieces[0].file != i || file.contains(name), "{} has no tensor '{:.200}'",
                   file.path().string(), name);
  }
}

void Checkpoint::check_headers(const VerifyShard& shard) const {
  if (manifest_.version == 1) return;  // offsets were read from the headers
  std::vector<std::vector<std::pair<const std::string*, const ManifestPiece*>>> pieces(manifest_.files.size());
  for (const auto& [name, tensor] : manifest_.tensors)
    for (const ManifestPiece& piece : tensor.pieces) pieces[piece.file].emplace_back(&name, &piece);
  for (auto i = static_cast<std::size_t>(shard.rank); i < pieces.size(); i += static_cast<std::size_t>(shard.ranks)) {
    if (pieces[i].empty()) continue;  // a file without tensors, such as tokenizer.json
    const SafetensorsFile file(path(i));
    const auto check = [&](bool same, const std::string& name) {
      if (!same)
        throw DamagedCheckpoint(
            fmt::format("{}: what its header says of '{:.200}' is not what the manifest says", path(i).string(), name));
    };
    for (const auto& [name, piece] : pieces[i]) {
      const ManifestTensor& tensor = *find(*name);
      const std::string stored = piece_name(*name, tensor.shape, piece->slice);
      const auto entry = std::ranges::lower_bound(file.entries(), stored, {}, &SafetensorsEntry::name);
      check(entry != file.entries().end() && entry->name == stored &&
                entry->dtype_name == safetensors_dtype(tensor.dtype) &&
                entry->shape == piece_shape(tensor.shape, piece->slice) &&
                file.data_offset() + entry->begin == piece->offset,
            stored);
    }
    check(file.entries().size() == pieces[i].size(), "all of its tensors");
  }
}

const ManifestTensor* Checkpoint::find(std::string_view name) const {
  const auto it = manifest_.tensors.find(name);
  return it == manifest_.tensors.end() ? nullptr : &it->second;
}

bool Checkpoint::has_file(std::string_view name) const {
  return std::ranges::find(manifest_.files, name, &ManifestFile::name) != manifest_.files.end();
}

FileDescriptor Checkpoint::open(std::size_t file) const {
  FileDescriptor opened(::open(path(file).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  require_user(static_cast<bool>(opened), "cannot open {}: {}", path(file).string(),
               std::generic_category().message(errno));
  return opened;
}

void Checkpoint::verify() const {
  FilePass pass(*this);
  pass.verify({});
  pass.run(nullptr);
}

std::vector<float> to_model_layout(std::vector<float> values, const Part& part) {
  return part.transposed ? transpose(values, part.global[1], part.global[0]) : std::move(values);
}

void load_weights(const SafetensorsFile& file, ParamStore& params, Ops& ops) {
  for (const Param* param : params.by_name())
    for (const auto& part : param->spec.parts) load_part(file, *param, part, ops);
}

}  // namespace tera
