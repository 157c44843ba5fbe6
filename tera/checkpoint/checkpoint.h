#pragma once
// A checkpoint on disk, and how a model takes what it needs of it. Tensors are stored as the slices that the ranks had
// which wrote them; whoever reads asks for slices of its own, and gets them from those bytes alone:
//
//   written by tp 2       [ rank 0 | rank 1 ]
//   read with tp 1, dp 3  [  0  |  1  |  2  ]
//
// What is read is not trusted: the manifest is checked as a whole, sizes must be the manifest's, links are refused.

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

// A file of a checkpoint is not what was written.
class DamagedCheckpoint : public UserError {
 public:
  using UserError::UserError;
};

// The tensors of a checkpoint are not those of the model. The message says what tensors alone can tell; whoever knows
// how both were configured says more.
class OtherModel : public UserError {
 public:
  struct Told {
    std::string where, tensors, guess;  // the manifest; which tensors; what that may come from
  };
  explicit OtherModel(Told told);
  std::string with(const std::string& difference) const;  // in place of the guess, and first

 private:
  Told told_;
};

// Every `ranks`-th file, beginning with `rank`: together, ranks verify each file once.
struct VerifyShare {
  int rank = 0, ranks = 1;
};

class Checkpoint {
 public:
  // `path` is a step's folder, or a folder of checkpoints: then the newest complete one is taken.
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
  // DamagedCheckpoint when a file is not what was written. Version 1 has no checksums.
  void verify() const;
  // Whether the files' own headers say of their pieces what the manifest says; of a share of the files.
  void check_headers(const VerifyShare& share = {}) const;

  // Every parameter must be there, with its shape, and nothing that is not the model's.
  void load_weights(ParamStore& params, Ops& ops) const;  // a store that holds the whole model

  // All that a rank keeps; of the optimizer nothing when only the weights are asked for. Where data-parallel ranks
  // have shares, each gets its own, and weights that are kept whole are to be handed round. A share of the files is
  // verified in the same reading.
  enum class Take : std::uint8_t { everything, weights };
  void load(const ModelState& state, Take take, Ops& ops, const std::optional<VerifyShare>& verified = {}) const;

 private:
  void resolve(const std::filesystem::path& path);
  void read_version_1();

  std::filesystem::path folder_;
  Manifest manifest_;
};

// Reads slices of a checkpoint, which outlives it; keeps files open. One for each thread.
class CheckpointReader {
 public:
  explicit CheckpointReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Elements of a slice as dtype `as`: floats are converted, all else must be what it is. `transposed` is the model's
  // flag (ModelTensor), for version 1.
  void read(std::string_view name, const TensorSlice& slice, DType as, std::span<std::byte> out,
            bool transposed = false);
  std::vector<float> read_floats(std::string_view name, bool transposed = false);  // all of it, [out,in]
  // Asks the system to bring what a later read of the slice needs.
  void expect(std::string_view name, const TensorSlice& slice);

 private:
  const FileDescriptor& open(std::size_t file);
  void read_piece(const ManifestTensor& tensor, const ManifestPiece& piece, const TensorSlice& slice, DType as,
                  std::span<std::byte> out);
  void read_bytes(std::size_t file, std::uint64_t offset, std::span<std::byte> out);

  const Checkpoint& checkpoint_;
  std::map<std::size_t, FileDescriptor> files_;
  std::vector<std::byte> window_;
};

// Every parameter from a file that has them under their outside names; other tensors in it are ignored.
void load_weights(const SafetensorsFile& file, ParamStore& params, Ops& ops);

// A tensor as Hugging Face's files hold it, turned into the [out,in] order of the parameter.
std::vector<float> to_model_layout(std::vector<float> values, const Part& part);

}  // namespace tera
