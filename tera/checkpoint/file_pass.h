#pragma once
// One reading of a checkpoint's files, front to back: on the way checksums are taken, and the pieces that a model wants
// go where it keeps them. So what a rank both verifies and loads, which is nearly all where the layout is the one that
// wrote it, is read once.

#include <cstdint>
#include <span>
#include <vector>

#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/read_ahead.h"

namespace tera {

class FilePass {
 public:
  explicit FilePass(const Checkpoint& checkpoint);  // which outlives it

  void verify(const VerifyShare& share);
  // Whether the elements of `piece` are taken when run() comes by: they must lie together in its memory wherever they
  // do in a file. The tensor is the checkpoint's.
  bool add(const ManifestTensor& tensor, const StatePiece& piece);

  // UserError when a file is not what was written; nothing that was taken may then be used. No Ops where nothing was
  // added.
  void run(Ops* ops);

 private:
  struct Taking {
    const ManifestTensor* tensor;
    const ManifestPiece* from;
    StatePiece to;
    std::uint64_t begin, end;  // of what is wanted, in the file
  };
  std::vector<Stretch> list_stretches() const;
  void check(const Stretch& stretch, std::span<const std::byte> bytes);
  void take(const Stretch& stretch, std::span<const std::byte> bytes, Ops& ops);
  void take(const Taking& taking, const Stretch& stretch, std::span<const std::byte> bytes, Ops& ops);

  const Checkpoint& checkpoint_;
  std::vector<bool> verified_;                // by file
  std::vector<std::vector<Taking>> takings_;  // by file, then by place in it
  std::uint32_t checksum_ = 0;                // of the file at hand, so far
  std::size_t passed_ = 0;                    // takings of the file at hand that are over
  std::vector<SharedRun> runs_;
  std::vector<std::byte> converted_;
};

}  // namespace tera
