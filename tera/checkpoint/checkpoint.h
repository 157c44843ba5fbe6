#pragma once
// A sharded checkpoint on disk, and resharding when it is read. Tensors are stored as the slices of the ranks that
// wrote them; a reader asks for slices of another layout and reads only the bytes of these:
//
//   written by tp 2       [ rank 0 | rank 1 ]
//   read with tp 1, dp 3  [  0  |  1  |  2  ]
//
// Checkpoints are untrusted data: all of the manifest is checked, file sizes must match it, links are refused.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/checkpoint/manifest.h"
#include "tera/checkpoint/model_state.h"

namespace tera {

class Ops;
class SafetensorsFile;

// A file of a checkpoint does not match its checksum or its manifest.
class DamagedCheckpoint : public UserError {
 public:
  using UserError::UserError;
};

// The tensors of a checkpoint are not those of the model. The message is derived from the tensors alone; a caller that
// knows both configurations can replace the guess with their difference.
class ModelMismatch : public UserError {
 public:
  struct Message {
    std::string where, tensors, guess;  // the manifest; which tensors; the probable cause
  };
  explicit ModelMismatch(Message message);
  std::string with(const std::string& difference) const;  // the difference, in place of the guess

 private:
  Message message_;
};

// The files that a rank verifies: every `ranks`-th one, beginning with `rank`. Together, ranks verify each file once.
struct VerifyShard {
  int rank = 0, ranks = 1;
};

class Checkpoint {
 public:
  // `path` is the folder of a step, or a folder of checkpoints, of which the newest complete one is opened.
  explicit Checkpoint(const std::filesystem::path& path);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const CheckpointSource& source() const { return manifest_.source; }
  std::int64_t step() const { return manifest_.source.step; }
  const std::string& config_yaml() const { return manifest_.source.config_yaml; }
  const ManifestTensor* find(std::string_view name) const;
  bool has_file(std::string_view name) const;
  std::filesystem::path path(std::size_t file) const { return folder_ / manifest_.files[file].name; }
  FileDescriptor open(std::size_t file) const;
  // Verifies all checksums; DamagedCheckpoint if one is wrong. Version 1 has no checksums.
  void verify() const;
  // Checks that the safetensors headers of a shard of the files agree with the manifest; else DamagedCheckpoint.
  void check_headers(const VerifyShard& shard = {}) const;

  // Loads all parameters; their shapes must match, and no other weights may be there.
  void load_weights(ParamStore& params, Ops& ops) const;  // a store of the full model

  // Loads the state of this rank, without optimizer state for Take::weights. Of sharded buckets a rank loads its own
  // shard; unsharded weights are to be all-gathered afterwards. The `verified` shard of the files is verified in the
  // same pass.
  enum class Take : std::uint8_t { everything, weights };
  void load(const ModelState& state, Take take, Ops& ops, const std::optional<VerifyShard>& verified = {}) const;

 private:
  void resolve(const std::filesystem::path& path);
  void read_version_1();

  std::filesystem::path folder_;
  Manifest manifest_;
};

// Reads slices of a checkpoint, which outlives the reader; keeps files open. Each thread needs its own.
class CheckpointReader {
 public:
  explicit CheckpointReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Reads the elements of a slice as dtype `as`: floats are converted, other dtypes must be equal. `transposed` is
  // ModelTensor::transposed, for version 1.
  void read(std::string_view name, const TensorSlice& slice, DType as, std::span<std::byte> out,
            bool transposed = false);
  std::vector<float> read_floats(std::string_view name, bool transposed = false);  // the full tensor, [out,in]
  // Starts a read-ahead of the slice into the page cache.
  void prefetch(std::string_view name, const TensorSlice& slice);

 private:
  const FileDescriptor& open(std::size_t file);
  void read_piece(const ManifestTensor& tensor, const ManifestPiece& piece, const TensorSlice& slice, DType as,
                  std::span<std::byte> out);
  void read_bytes(std::size_t file, std::uint64_t offset, std::span<std::byte> out);

  const Checkpoint& checkpoint_;
  std::map<std::size_t, FileDescriptor> files_;
  std::vector<std::byte> window_;
};

// Loads every parameter from a file with Hugging Face names; other tensors in the file are ignored.
void load_weights(const SafetensorsFile& file, ParamStore& params, Ops& ops);

// Brings a tensor in the order of Hugging Face's files, perhaps [in,out], to the [out,in] order of the parameter.
std::vector<float> to_model_layout(std::vector<float> values, const Part& part);

}  // namespace tera
