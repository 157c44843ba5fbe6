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
      takings_(checkpoint.manifest().files.size()) {}

void FilePass::verify(const VerifyShare& share) {
  if (checkpoint_.manifest().version == 1) return;  // has no checksums
  for (auto i = static_cast<std::size_t>(share.rank); i < verified_.size(); i += static_cast<std::size_t>(share.ranks))
    verified_[i] = true;
}

bool FilePass::add(const ManifestTensor& tensor, const StatePiece& piece) {
  const auto width = static_cast<std::int64_t>(size_of(tensor.dtype));
  std::vector<std::pair<std::size_t, Taking>> found;  // with their files
  for (const ManifestPiece& from : tensor.pieces) {
    std::int64_t first = from.slice.elements(), last = 0, next = -1;
    bool together = true;
    for_each_shared(piece.slice, from.slice, tensor.shape, [&](const SharedRun& run) {
      together = together && (next < 0 || run.in_a == next);
      next = run.in_a + run.elements;
      first = std::min(first, run.in_b);
      last = std::max(last, run.in_b + run.elements);
    });
    if (!together || from.offset % static_cast<std::uint64_t>(width) != 0) return false;
    const auto place = [&](std::int64_t element) { return from.offset + static_cast<std::uint64_t>(element * width); };
    if (first < last) found.push_back({from.file, {&tensor, &from, piece, place(first), place(last)}});
  }
  for (const auto& [file, taking] : found) takings_[file].push_back(taking);
  return true;
}

std::vector<Stretch> FilePass::list_stretches() const {
  std::vector<Stretch> stretches;
  for (std::size_t file = 0; file < takings_.size(); ++file) {
    const std::uint64_t bytes = checkpoint_.manifest().files[file].bytes;
    std::uint64_t next = 0;  // what lies before it is listed
    const auto list = [&](std::uint64_t begin, std::uint64_t end) {
      for (begin = std::max(next, begin / ReadAhead::most_bytes * ReadAhead::most_bytes); begin < end;
           begin += ReadAhead::most_bytes)
        stretches.push_back(
            {.file = file,
             .begin = begin,
             .bytes = static_cast<std::size_t>(std::min<std::uint64_t>(ReadAhead::most_bytes, bytes - begin)),
             .alone = verified_[file]});
      next = std::max(next, begin);
    };
    if (verified_[file]) list(0, bytes);
    for (const Taking& taking : takings_[file]) list(taking.begin, taking.end);
  }
  return stretches;
}

void FilePass::run(Ops* ops) {
  for (std::vector<Taking>& takings : takings_) {
    require(ops != nullptr || takings.empty(), "pieces were asked for, but nobody puts them in their place");
    std::ranges::sort(takings, {}, &Taking::begin);
  }
  const std::vector<Stretch> stretches = list_stretches();
  ReadAhead bytes(checkpoint_, stretches);
  std::size_t file = takings_.size();
  for (const Stretch& stretch : stretches) {
    if (stretch.file != file) {
      file = stretch.file;
      checksum_ = 0;
      passed_ = 0;
    }
    const std::span<const std::byte> content = bytes.next();
    if (verified_[file]) check(stretch, content);
    if (ops != nullptr) take(stretch, content, *ops);
  }
}

void FilePass::check(const Stretch& stretch, std::span<const std::byte> bytes) {
  const ManifestFile& file = checkpoint_.manifest().files[stretch.file];
  checksum_ = crc32c(bytes, checksum_);
  if (stretch.begin + stretch.bytes < file.bytes || checksum_ == file.crc32c) return;
  throw DamagedCheckpoint(fmt::format("{}: its checksum is {:08x}, but {:08x} was written: the file was damaged",
                                      checkpoint_.path(stretch.file).string(), checksum_, file.crc32c));
}

void FilePass::take(const Stretch& stretch, std::span<const std::byte> bytes, Ops& ops) {
  const std::vector<Taking>& takings = takings_[stretch.file];
  const std::uint64_t end = stretch.begin + stretch.bytes;
  while (passed_ < takings.size() && takings[passed_].end <= stretch.begin) ++passed_;
  for (std::size_t i = passed_; i < takings.size() && takings[i].begin < end; ++i)
    if (takings[i].end > stretch.begin) take(takings[i], stretch, bytes, ops);
}

// What the piece in the file, the stretch and the piece in memory have in common. Stretches begin and end between
// elements, because pieces lie at multiples of an element's size.
void FilePass::take(const Taking& taking, const Stretch& stretch, std::span<const std::byte> bytes, Ops& ops) {
  const DType stored = taking.tensor->dtype, wanted = taking.to.data.dtype;
  const std::uint64_t width = size_of(stored), offset = taking.from->offset;
  const std::uint64_t begin = std::max(stretch.begin, taking.begin),
                      end = std::min(stretch.begin + stretch.bytes, taking.end);
  TensorSlice part = taking.from->slice;
  part.to = part.from + static_cast<std::int64_t>((end - offset) / width);
  part.from += static_cast<std::int64_t>((begin - offset) / width);
  runs_.clear();
  const std::int64_t elements =
      for_each_shared(taking.to.slice, part, taking.tensor->shape, [&](const SharedRun& run) { runs_.push_back(run); });
  if (elements == 0) return;
  const std::int64_t first = runs_.front().in_a;
  const Tensor to = taking.to.data.rows(first, first + elements);
  const std::byte* const from = bytes.data() + (begin - stretch.begin);
  if (runs_.size() == 1 && stored == wanted)
    return ops.from_host({from + static_cast<std::size_t>(runs_[0].in_b) * width, to.bytes()}, to);
  converted_.resize(to.bytes());
  for (const SharedRun& run : runs_)
    convert(from + static_cast<std::size_t>(run.in_b) * width, stored,
            converted_.data() + static_cast<std::size_t>(run.in_a - first) * size_of(wanted), wanted, run.elements);
  ops.from_host(converted_, to);
}

}  // namespace tera
