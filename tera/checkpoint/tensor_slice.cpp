#include "tera/checkpoint/tensor_slice.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

namespace tera {
namespace {

std::int64_t columns_of(const Shape& global) { return global.rank == 2 ? global[1] : 1; }

// A slice and its layout in the row-major order of the full tensor.
struct SliceLayout {
  SliceLayout(const TensorSlice& slice, const Shape& global)
      : first_row(slice.split == 0 ? slice.begin : 0),
        first_column(slice.split == 1 ? slice.begin : 0),
        width(slice.split == 1 ? slice.end - slice.begin : columns_of(global)),
        columns(columns_of(global)),
        from(slice.from),
        to(slice.to) {}

  bool is_contiguous() const { return width == columns; }  // its elements are contiguous in the full tensor
  std::int64_t global_index(std::int64_t element) const {
    return (first_row + element / width) * columns + first_column + element % width;
  }
  // The first element of the slice at or after an index of the full tensor.
  std::int64_t element_at(std::int64_t index) const {
    const std::int64_t row = index / columns - first_row, column = index % columns - first_column;
    if (row < 0) return 0;
    return column >= width ? (row + 1) * width : row * width + std::max<std::int64_t>(column, 0);
  }
  // End of the contiguous run that has the element.
  std::int64_t run_end(std::int64_t element) const {
    return is_contiguous() ? to : std::min(to, (element / width + 1) * width);
  }

  std::int64_t first_row, first_column, width, columns, from, to;
};

}  // namespace

TensorSlice full_slice(const Shape& global) { return {.split = 0, .begin = 0, .end = global[0], .to = count(global)}; }

TensorSlice slice_of(const Part& part) {
  return {.split = part.split, .begin = part.begin, .end = part.stop(), .to = count(part.local_shape())};
}

bool is_slice_of(const TensorSlice& slice, const Shape& global) {
  return slice.split >= 0 && slice.split < global.rank && slice.begin >= 0 && slice.begin < slice.end &&
         slice.end <= global[static_cast<int>(slice.split)] && slice.from >= 0 && slice.from < slice.to &&
         slice.to <= range_elements(slice, global);
}

bool is_full(const TensorSlice& slice, const Shape& global) { return slice.elements() == count(global); }

std::int64_t range_elements(const TensorSlice& slice, const Shape& global) {
  return (slice.end - slice.begin) * (slice.split == 1 ? global[0] : columns_of(global));
}

std::int64_t for_each_shared(const TensorSlice& a, const TensorSlice& b, const Shape& global,
                             FunctionRef<void(const SharedRun&)> visit) {
  const SliceLayout in_a(a, global), in_b(b, global);
  std::int64_t shared = 0;
  for (std::int64_t at = a.from; at < a.to;) {
    const std::int64_t end = in_a.run_end(at), index = in_a.global_index(at), index_end = index + (end - at);
    std::int64_t other = std::max(in_b.element_at(index), b.from);
    while (other < b.to) {
      const std::int64_t begin = in_b.global_index(other);
      if (begin >= index_end) break;
      const std::int64_t n = std::min(in_b.run_end(other) - other, index_end - begin);
      visit({.in_a = at + (begin - index) - a.from, .in_b = other - b.from, .elements = n});
      shared += n;
      other += n;
    }
    if (other >= b.to) break;
    // Skips to the run of a that has the index of b's next element.
    at = std::max(end, std::min(a.to, in_a.element_at(in_b.global_index(other))));
  }
  return shared;
}

std::string why_not_a_cover(std::vector<TensorSlice> slices, const Shape& global) {
  if (slices.empty()) return "none of it is there";
  for (const TensorSlice& slice : slices)
    if (!is_slice_of(slice, global) || slice.split != slices[0].split)
      return "a slice is none of a tensor of this shape";
  std::ranges::sort(slices, {}, [](const TensorSlice& slice) { return std::tuple(slice.begin, slice.from); });
  std::int64_t range_begin = 0, range_end = 0, next = 0;  // next 0: the range is complete
  for (const TensorSlice& slice : slices) {
    const bool follows = next == 0 ? slice.begin == range_end && slice.from == 0
                                   : slice.begin == range_begin && slice.end == range_end && slice.from == next;
    if (!follows)
      return fmt::format("slices overlap or leave a gap at element {} of range {} to {} of dim {}", slice.from,
                         slice.begin, slice.end, slice.split);
    range_begin = slice.begin;
    range_end = slice.end;
    next = slice.to == range_elements(slice, global) ? 0 : slice.to;
  }
  if (next != 0 || range_end != global[static_cast<int>(slices[0].split)]) return "its last elements are not there";
  return {};
}

}  // namespace tera
