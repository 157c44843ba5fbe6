#pragma once
// One sequential pass over a checkpoint's files that computes checksums and loads pieces into the model. So a file that
// a rank both verifies and loads is read once; with an unchanged layout these are nearly all of its files.

#include <cstdint>
#include <span>
#include <vector>

#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/read_ahead.h"

namespace tera {

class FilePass {
 public:
  explicit FilePass(const Checkpoint& checkpoint);  // outlives the pass

  void verify(const VerifyShard& shard);
  // Registers `piece` to be loaded by run(). False, and nothing is registered, if the elements that it has of one
  // stored piece are not contiguous in memory. The tensor is the checkpoint's.
  bool add(const ManifestTensor& tensor, const StatePiece& piece);

  // Reads, verifies and loads. UserError if a file is damaged; then no loaded piece may be used. `ops` may be null if
  // no piece was added.
  void run(Ops* ops);

 private:
  struct Target {
    const ManifestTensor* tensor;
    const ManifestPiece* from;
    StatePiece to;
    std::uint64_t begin, end;  // bytes of the file that hold wanted elements
  };
  std::vector<FileChunk> list_chunks() const;
  void check(const FileChunk& chunk, std::span<const std::byte> bytes);
  void load(const FileChunk& chunk, std::span<const std::byte> bytes, Ops& ops);
  void load(const Target& target, const FileChunk& chunk, std::span<const std::byte> bytes, Ops& ops);

  const Checkpoint& checkpoint_;
  std::vector<bool> verified_;                // by file
  std::vector<std::vector<Target>> targets_;  // by file, in order of offset
  std::uint32_t checksum_ = 0;                // checksum of the current file so far
  std::size_t done_ = 0;                      // targets of the current file that are loaded
  std::vector<SharedRun> runs_;
  std::vector<std::byte> converted_;
};

}  // namespace tera
