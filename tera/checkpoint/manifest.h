#pragma once
// manifest.json of a checkpoint: training progress, the config, every tensor with dtype, shape and the locations of its
// slices, and size and checksum of every file; its last field is a checksum of all before it. It is untrusted data: a
// file is one inside the folder, never a path, and slices must cover their tensor, each element once.
//
// Version 1 had only weights, unsharded, in one file and in the order of Hugging Face's files.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tera/checkpoint/tensor_slice.h"
#include "tera/optim/loss_scale.h"
#include "tera/tensor/dtype.h"

namespace tera {

// Training progress and its origin.
struct CheckpointSource {
  std::int64_t step = 0;
  std::string config_yaml;  // a config that `tera train` accepts
  std::int64_t consumed_samples = 0;
  std::optional<std::int64_t> consumed_tokens = {};  // none: written by an earlier version
  std::int64_t skipped_samples = 0;  // samples of skipped steps, which the learning-rate schedule does not count
  std::int64_t updates = 0;          // optimizer updates
  std::int64_t seed = 0;             // all random numbers are functions of the seed and of counters
  // The checkpoint that training was started from: the name of one in the same folder, the path of another, or empty.
  std::string started_from = {};
  std::optional<LossScale> loss_scale = {};  // dynamic loss scale of fp16
};

struct ManifestFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  bool operator==(const ManifestFile&) const = default;
};

struct ManifestPiece {
  std::size_t file = 0;      // index in Manifest::files
  std::uint64_t offset = 0;  // bytes from the beginning of the file
  TensorSlice slice;
  bool operator==(const ManifestPiece&) const = default;
};

struct ManifestTensor {
  DType dtype = DType::f32;
  Shape shape;  // [out,in]; version 1: as stored in the file
  std::vector<ManifestPiece> pieces;
  bool operator==(const ManifestTensor&) const = default;
};

struct Manifest {
  int version = 2;
  CheckpointSource source;
  std::map<std::string, ManifestTensor, std::less<>> tensors;
  std::vector<ManifestFile> files;
};

// Formats version 2, with its checksum. UserError if the config is not UTF-8.
std::string format_manifest(const Manifest& manifest);

// Appends the checksum of a manifest's text as its last field, or replaces it.
std::string seal_manifest(std::string_view text);

// Parses either version; pieces of version 1 have no offset yet. `where` is for messages.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace tera
