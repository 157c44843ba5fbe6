#pragma once
// Where elements of a rank's memory or of a file lie in a whole tensor. A layout cuts one dim of a tensor into ranges,
// and what ranks share is cut once more, across rows:
//
//   whole [6,4]      split 1, [2,4)     of that elements [3,9), counted row by row
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
  std::int64_t split = 0, begin = 0, end = 0;  // a range of one dim of the whole
  std::int64_t from = 0, to = 0;               // elements of that range

  std::int64_t elements() const { return to - from; }
  bool operator==(const TensorSlice&) const = default;
};

TensorSlice whole_slice(const Shape& whole);
TensorSlice slice_of(const Part& part);  // all that the rank holds

// Whether the slice is one of a tensor of this shape, which has one dim or two.
bool fits(const TensorSlice& slice, const Shape& whole);
bool is_whole(const TensorSlice& slice, const Shape& whole);
std::int64_t range_elements(const TensorSlice& slice, const Shape& whole);  // of the range that from and to count in

// Elements that two slices of one tensor have in common and that lie together in both: places in each, from its first
// element.
struct SharedRun {
  std::int64_t in_a = 0, in_b = 0, elements = 0;
};
// In ascending order of both places. Returns how many elements there are in all.
std::int64_t for_each_shared(const TensorSlice& a, const TensorSlice& b, const Shape& whole,
                             FunctionRef<void(const SharedRun&)> take);

// Empty when every element of the tensor is in one of the slices, and in one only; else what is wrong.
std::string why_not_a_cover(std::vector<TensorSlice> slices, const Shape& whole);

}  // namespace tera
