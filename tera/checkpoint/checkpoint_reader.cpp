// Resharding: reads a slice of a tensor out of the slices that are stored.

#include <fcntl.h>

#include <algorithm>

#include "tera/base/error.h"
#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/convert.h"

namespace tera {
namespace {

// Runs with small gaps are read at once, gaps included: a disk reads full pages anyway.
constexpr std::int64_t window_bytes = std::int64_t{4} << 20, gap_bytes = 32 << 10;

}  // namespace

void CheckpointReader::read(std::string_view name, const TensorSlice& slice, DType as, std::span<std::byte> out,
                            bool transposed) {
  const ManifestTensor* tensor = checkpoint_.find(name);
  require_user(tensor != nullptr, "{} has no tensor '{}'", checkpoint_.folder().string(), name);
  require_user(tensor->dtype == as || (is_float(tensor->dtype) && is_float(as)),
               "{}: tensor '{}' is {}, which cannot be read as {}", checkpoint_.folder().string(), name,
               name_of(tensor->dtype), name_of(as));
  require(out.size() == static_cast<std::size_t>(slice.elements()) * size_of(as), "'{}': {} bytes do not fit a slice",
          name, out.size());
  if (checkpoint_.manifest().version == 1 && transposed) {
    const std::vector<float> full = read_floats(name, true);
    const Shape transposed_shape = shape(tensor->shape[1], tensor->shape[0]);
    for_each_shared(slice, full_slice(transposed_shape), transposed_shape, [&](const SharedRun& run) {
      convert(reinterpret_cast<const std::byte*>(full.data() + run.in_b), DType::f32,
              out.data() + static_cast<std::size_t>(run.in_a) * size_of(as), as, run.elements);
    });
    return;
  }
  require(is_slice_of(slice, tensor->shape), "'{}' has no such slice", name);
  for (const ManifestPiece& piece : tensor->pieces) read_piece(*tensor, piece, slice, as, out);
}

void CheckpointReader::read_piece(const ManifestTensor& tensor, const ManifestPiece& piece, const TensorSlice& slice,
                                  DType as, std::span<std::byte> out) {
  const auto width = static_cast<std::int64_t>(size_of(tensor.dtype)),
             to_width = static_cast<std::int64_t>(size_of(as));
  std::vector<SharedRun> runs;  // runs of the current window
  const auto flush = [&] {
    if (runs.empty()) return;
    const std::int64_t first = runs.front().in_b, last = runs.back().in_b + runs.back().elements;
    const std::uint64_t offset = piece.offset + static_cast<std::uint64_t>(first * width);
    if (runs.size() == 1 && tensor.dtype == as) {
      read_bytes(piece.file, offset,
                 out.subspan(static_cast<std::size_t>(runs[0].in_a * width),
                             static_cast<std::size_t>((last - first) * width)));
    } else {
      window_.resize(static_cast<std::size_t>((last - first) * width));
      read_bytes(piece.file, offset, window_);
      for (const SharedRun& run : runs)
        convert(window_.data() + (run.in_b - first) * width, tensor.dtype, out.data() + run.in_a * to_width, as,
                run.elements);
    }
    runs.clear();
  };
  for_each_shared(slice, piece.slice, tensor.shape, [&](const SharedRun& run) {
    if (!runs.empty()) {
      const std::int64_t end = runs.back().in_b + runs.back().elements;
      if ((run.in_b - end) * width > gap_bytes || (run.in_b + run.elements - runs.front().in_b) * width > window_bytes)
        flush();
    }
    runs.push_back(run);
  });
  flush();
}

void CheckpointReader::prefetch(std::string_view name, const TensorSlice& slice) {
  const ManifestTensor* tensor = checkpoint_.find(name);
  if (!tensor || !is_slice_of(slice, tensor->shape)) return;
  const auto width = static_cast<std::int64_t>(size_of(tensor->dtype));
  for (const ManifestPiece& piece : tensor->pieces) {
    std::int64_t first = piece.slice.elements(), last = 0;
    for_each_shared(slice, piece.slice, tensor->shape, [&](const SharedRun& run) {
      first = std::min(first, run.in_b);
      last = std::max(last, run.in_b + run.elements);
    });
    if (first < last)
      static_cast<void>(::posix_fadvise(open(piece.file).get(), static_cast<off_t>(piece.offset) + first * width,
                                        (last - first) * width, POSIX_FADV_WILLNEED));
  }
}

const FileDescriptor& CheckpointReader::open(std::size_t file) {
  constexpr std::size_t max_open = 64;
  const auto known = files_.find(file);
  if (known != files_.end()) return known->second;
  if (files_.size() == max_open) files_.clear();
  return files_.emplace(file, checkpoint_.open(file)).first->second;
}

void CheckpointReader::read_bytes(std::size_t file, std::uint64_t offset, std::span<std::byte> out) {
  read_at(open(file), offset, out, checkpoint_.path(file));
}

std::vector<float> CheckpointReader::read_floats(std::string_view name, bool transposed) {
  const ManifestTensor* tensor = checkpoint_.find(name);
  require_user(tensor != nullptr, "{} has no tensor '{}'", checkpoint_.folder().string(), name);
  const Shape& shape = tensor->shape;
  std::vector<float> values(static_cast<std::size_t>(count(shape)));
  read(name, full_slice(shape), DType::f32, std::as_writable_bytes(std::span(values)));
  if (!transposed || checkpoint_.manifest().version != 1) return values;
  return to_model_layout(std::move(values),
                         {.name = {}, .global = tera::shape(shape[1], shape[0]), .transposed = true});
}

}  // namespace tera
