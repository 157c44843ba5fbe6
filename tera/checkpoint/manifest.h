#pragma once
// manifest.json of a checkpoint: how far training was, the config, every tensor with dtype, shape and where its slices
// lie, and size and checksum of every file; its last field is a checksum of all before it. What it says is data from
// outside: a file is one inside the folder, never a path, and slices cover their tensor, each element once.
//
// Version 1 had the weights alone, whole, in one file and in the order of Hugging Face's files.

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

// How far training was, and of what.
struct CheckpointSource {
  std::int64_t step = 0;
  std::string config_yaml;  // as `tera train` would take it
  std::int64_t consumed_samples = 0;
  std::optional<std::int64_t> consumed_tokens = {};  // none: of an earlier program
  std::int64_t skipped_samples = 0;  // of these, of steps that were skipped: the learning rate does not count them
  std::int64_t updates = 0;          // of the optimizer
  std::int64_t seed = 0;             // all randomness is a function of it and of a counter
  // The checkpoint that this line of training was begun from: the name of one in the same folder, the path of another,
  // or nothing.
  std::string started_from = {};
  std::optional<LossScale> loss_scale = {};  // of fp16, where it changes
};

struct ManifestFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  bool operator==(const ManifestFile&) const = default;
};

struct ManifestPiece {
  std::size_t file = 0;      // of Manifest::files
  std::uint64_t offset = 0;  // bytes from the beginning of the file
  TensorSlice slice;
  bool operator==(const ManifestPiece&) const = default;
};

struct ManifestTensor {
  DType dtype = DType::f32;
  Shape shape;  // [out,in]; in version 1 as in the file
  std::vector<ManifestPiece> pieces;
  bool operator==(const ManifestTensor&) const = default;
};

struct Manifest {
  int version = 2;
  CheckpointSource source;
  std::map<std::string, ManifestTensor, std::less<>> tensors;
  std::vector<ManifestFile> files;
};

// In version 2, sealed. UserError if the config is not UTF-8.
std::string format_manifest(const Manifest& manifest);

// The text of a manifest with its last field, the checksum of what stands before; in place of one that it has.
std::string seal_manifest(std::string_view text);

// Of either version; pieces of version 1 have no offset yet. `where` is for messages.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace tera
