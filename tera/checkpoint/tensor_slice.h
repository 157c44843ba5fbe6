#pragma once
// A slice of a full tensor, held by a rank or a file. A parallel layout splits one dim of a tensor into ranges;
// data-parallel sharding splits the elements of a range once more, across rows:
//
//   full [6,4]       split 1, [2,4)     elements [3,9) of it, in row-major order
//   . . . .          . . 0 1
//   . . . .          . . 2 3                 . . . 3
//   . . . .          . . 4 5                 . . 4 5
//   . . . .          . . 6 7                 . . 6 7
//   . . . .          . . 8 9                 . . 8 .
//   . . . .          . . . .

#include <cstdint>
#include <string>
#include <vector>

#include "tera/base/function_ref.h"
#include "tera/nn/part.h"

namespace tera {

struct TensorSlice {
  std::int64_t split = 0, begin = 0, end = 0;  // a range of one dim of the full tensor
  std::int64_t from = 0, to = 0;               // elements of that range, in row-major order

  std::int64_t elements() const { return to - from; }
  bool operator==(const TensorSlice&) const = default;
};

TensorSlice full_slice(const Shape& global);
TensorSlice slice_of(const Part& part);  // all that the rank holds

// Whether the slice is one of a tensor of this shape, which has one dim or two.
bool is_slice_of(const TensorSlice& slice, const Shape& global);
bool is_full(const TensorSlice& slice, const Shape& global);
// Elements of the range [begin,end), which bound `from` and `to`.
std::int64_t range_elements(const TensorSlice& slice, const Shape& global);

// Elements that two slices of one tensor have in common and that are contiguous in both, as offsets from the first
// element of each.
struct SharedRun {
  std::int64_t in_a = 0, in_b = 0, elements = 0;
};
// Visits the intersection of two slices in ascending order. Returns its number of elements.
std::int64_t for_each_shared(const TensorSlice& a, const TensorSlice& b, const Shape& global,
                             FunctionRef<void(const SharedRun&)> visit);

// Empty if every element of the tensor is in exactly one of the slices; else what is wrong.
std::string why_not_a_cover(std::vector<TensorSlice> slices, const Shape& global);

}  // namespace tera
