#include "tera/checkpoint/tensor_slice.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

namespace tera {
namespace {

std::int64_t columns_of(const Shape& whole) { return whole.rank == 2 ? whole[1] : 1; }

// A slice, and how its elements lie in the whole.
struct Placed {
  Placed(const TensorSlice& slice, const Shape& whole)
      : first_row(slice.split == 0 ? slice.begin : 0),
        first_column(slice.split == 1 ? slice.begin : 0),
        width(slice.split == 1 ? slice.end - slice.begin : columns_of(whole)),
        columns(columns_of(whole)),
        from(slice.from),
        to(slice.to) {}

  bool together() const { return width == columns; }  // all its elements are neighbours in the whole
  std::int64_t place_of(std::int64_t element) const {
    return (first_row + element / width) * columns + first_column + element % width;
  }
  // The first element at or behind a place of the whole.
  std::int64_t element_at(std::int64_t place) const {
    const std::int64_t row = place / columns - first_row, column = place % columns - first_column;
    if (row < 0) return 0;
    return column >= width ? (row + 1) * width : row * width + std::max<std::int64_t>(column, 0);
  }
  // Where the neighbours of an element end.
  std::int64_t run_end(std::int64_t element) const {
    return together() ? to : std::min(to, (element / width + 1) * width);
  }

  std::int64_t first_row, first_column, width, columns, from, to;
};

}  // namespace

TensorSlice whole_slice(const Shape& whole) { return {.split = 0, .begin = 0, .end = whole[0], .to = count(whole)}; }

TensorSlice slice_of(const Part& part) {
  return {.split = part.split, .begin = part.begin, .end = part.stop(), .to = count(part.held())};
}

bool fits(const TensorSlice& slice, const Shape& whole) {
  return slice.split >= 0 && slice.split < whole.rank && slice.begin >= 0 && slice.begin < slice.end &&
         slice.end <= whole[static_cast<int>(slice.split)] && slice.from >= 0 && slice.from < slice.to &&
         slice.to <= range_elements(slice, whole);
}

bool is_whole(const TensorSlice& slice, const Shape& whole) { return slice.elements() == count(whole); }

std::int64_t range_elements(const TensorSlice& slice, const Shape& whole) {
  return (slice.end - slice.begin) * (slice.split == 1 ? whole[0] : columns_of(whole));
}

std::int64_t for_each_shared(const TensorSlice& a, const TensorSlice& b, const Shape& whole,
                             FunctionRef<void(const SharedRun&)> take) {
  const Placed in_a(a, whole), in_b(b, whole);
  std::int64_t shared = 0;
  for (std::int64_t at = a.from; at < a.to;) {
    const std::int64_t end = in_a.run_end(at), place = in_a.place_of(at), place_end = place + (end - at);
    std::int64_t other = std::max(in_b.element_at(place), b.from);
    while (other < b.to) {
      const std::int64_t begin = in_b.place_of(other);
      if (begin >= place_end) break;
      const std::int64_t n = std::min(in_b.run_end(other) - other, place_end - begin);
      take({.in_a = at + (begin - place) - a.from, .in_b = other - b.from, .elements = n});
      shared += n;
      other += n;
    }
    if (other >= b.to) break;
    // On to the run of a that has the place of b's next element.
    at = std::max(end, std::min(a.to, in_a.element_at(in_b.place_of(other))));
  }
  return shared;
}

std::string why_not_a_cover(std::vector<TensorSlice> slices, const Shape& whole) {
  if (slices.empty()) return "none of it is there";
  for (const TensorSlice& slice : slices)
    if (!fits(slice, whole) || slice.split != slices[0].split) return "a slice is none of a tensor of this shape";
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
    next = slice.to == range_elements(slice, whole) ? 0 : slice.to;
  }
  if (next != 0 || range_end != whole[static_cast<int>(slices[0].split)]) return "its last elements are not there";
  return {};
}

}  // namespace tera
