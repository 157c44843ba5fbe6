#include "tera/checkpoint/file_pass.h"

#include <fmt/core.h>

#include <algorithm>

#include "tera/base/checksum.h"
#include "tera/base/error.h"
#include "tera/checkpoint/convert.h"
#include "tera/ops/ops.h"

namespace tera {

FilePass::FilePass(const Checkpoint& checkpoint)
    : checkpoint_(checkpoint),
      verified_(checkpoint.manifest().files.size()),
      targets_(checkpoint.manifest().files.size()) {}

void FilePass::verify(const VerifyShard& shard) {
  if (checkpoint_.manifest().version == 1) return;  // version 1 has no checksums
  for (auto i = static_cast<std::size_t>(shard.rank); i < verified_.size(); i += static_cast<std::size_t>(shard.ranks))
    verified_[i] = true;
}

bool FilePass::add(const ManifestTensor& tensor, const StatePiece& piece) {
  const auto width = static_cast<std::int64_t>(size_of(tensor.dtype));
  std::vector<std::pair<std::size_t, Target>> found;  // by file
  for (const ManifestPiece& from : tensor.pieces) {
    std::int64_t first = from.slice.elements(), last = 0, next = -1;
    bool contiguous = true;
    for_each_shared(piece.slice, from.slice, tensor.shape, [&](const SharedRun& run) {
      contiguous = contiguous && (next < 0 || run.in_a == next);
      next = run.in_a + run.elements;
      first = std::min(first, run.in_b);
      last = std::max(last, run.in_b + run.elements);
    });
    if (!contiguous || from.offset % static_cast<std::uint64_t>(width) != 0) return false;
    const auto offset_of = [&](std::int64_t element) {
      return from.offset + static_cast<std::uint64_t>(element * width);
    };
    if (first < last) found.push_back({from.file, {&tensor, &from, piece, offset_of(first), offset_of(last)}});
  }
  for (const auto& [file, target] : found) targets_[file].push_back(target);
  return true;
}

std::vector<FileChunk> FilePass::list_chunks() const {
  std::vector<FileChunk> chunks;
  for (std::size_t file = 0; file < targets_.size(); ++file) {
    const std::uint64_t bytes = checkpoint_.manifest().files[file].bytes;
    std::uint64_t next = 0;  // end of the chunks listed so far
    const auto list = [&](std::uint64_t begin, std::uint64_t end) {
      for (begin = std::max(next, begin / ReadAhead::max_bytes * ReadAhead::max_bytes); begin < end;
           begin += ReadAhead::max_bytes)
        chunks.push_back(
            {.file = file,
             .begin = begin,
             .bytes = static_cast<std::size_t>(std::min<std::uint64_t>(ReadAhead::max_bytes, bytes - begin)),
             .direct = verified_[file]});
      next = std::max(next, begin);
    };
    if (verified_[file]) list(0, bytes);
    for (const Target& target : targets_[file]) list(target.begin, target.end);
  }
  return chunks;
}

void FilePass::run(Ops* ops) {
  for (std::vector<Target>& targets : targets_) {
    require(ops != nullptr || targets.empty(), "pieces were asked for, but nobody puts them in their place");
    std::ranges::sort(targets, {}, &Target::begin);
  }
  const std::vector<FileChunk> chunks = list_chunks();
  ReadAhead bytes(checkpoint_, chunks);
  std::size_t file = targets_.size();
  for (const FileChunk& chunk : chunks) {
    if (chunk.file != file) {
      file = chunk.file;
      checksum_ = 0;
      done_ = 0;
    }
    const std::span<const std::byte> content = bytes.next();
    if (verified_[file]) check(chunk, content);
    if (ops != nullptr) load(chunk, content, *ops);
  }
}

void FilePass::check(const FileChunk& chunk, std::span<const std::byte> bytes) {
  const ManifestFile& file = checkpoint_.manifest().files[chunk.file];
  checksum_ = crc32c(bytes, checksum_);
  if (chunk.begin + chunk.bytes < file.bytes || checksum_ == file.crc32c) return;
  throw DamagedCheckpoint(fmt::format("{}: its checksum is {:08x}, but {:08x} was written: the file was damaged",
                                      checkpoint_.path(chunk.file).string(), checksum_, file.crc32c));
}

void FilePass::load(const FileChunk& chunk, std::span<const std::byte> bytes, Ops& ops) {
  const std::vector<Target>& targets = targets_[chunk.file];
  const std::uint64_t end = chunk.begin + chunk.bytes;
  while (done_ < targets.size() && targets[done_].end <= chunk.begin) ++done_;
  for (std::size_t i = done_; i < targets.size() && targets[i].begin < end; ++i)
    if (targets[i].end > chunk.begin) load(targets[i], chunk, bytes, ops);
}

// Loads the intersection of the stored piece, the chunk and the piece in memory. Chunks begin and end between elements,
// because the offsets of pieces are multiples of an element's size.
void FilePass::load(const Target& target, const FileChunk& chunk, std::span<const std::byte> bytes, Ops& ops) {
  const DType stored = target.tensor->dtype, wanted = target.to.data.dtype;
  const std::uint64_t width = size_of(stored), offset = target.from->offset;
  const std::uint64_t begin = std::max(chunk.begin, target.begin),
                      end = std::min(chunk.begin + chunk.bytes, target.end);
  TensorSlice part = target.from->slice;
  part.to = part.from + static_cast<std::int64_t>((end - offset) / width);
  part.from += static_cast<std::int64_t>((begin - offset) / width);
  runs_.clear();
  const std::int64_t elements =
      for_each_shared(target.to.slice, part, target.tensor->shape, [&](const SharedRun& run) { runs_.push_back(run); });
  if (elements == 0) return;
  const std::int64_t first = runs_.front().in_a;
  const Tensor to = target.to.data.rows(first, first + elements);
  const std::byte* const from = bytes.data() + (begin - chunk.begin);
  if (runs_.size() == 1 && stored == wanted)
    return ops.from_host({from + static_cast<std::size_t>(runs_[0].in_b) * width, to.bytes()}, to);
  converted_.resize(to.bytes());
  for (const SharedRun& run : runs_)
    convert(from + static_cast<std::size_t>(run.in_b) * width, stored,
            converted_.data() + static_cast<std::size_t>(run.in_a - first) * size_of(wanted), wanted, run.elements);
  ops.from_host(converted_, to);
}

}  // namespace tera
