// Slices of tensors against sets of elements.

#include "tera/checkpoint/tensor_slice.h"

#include <gtest/gtest.h>

#include <map>

#include "tera/base/error.h"

namespace tera::test {
namespace {

// The index in the full tensor of every element of a slice, by counting.
std::vector<std::int64_t> indices_of(const TensorSlice& slice, const Shape& full) {
  const std::int64_t columns = full.rank == 2 ? full[1] : 1;
  std::vector<std::int64_t> all;
  for (std::int64_t row = 0; row < full[0]; ++row)
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t at = slice.split == 0 ? row : column;
      if (at >= slice.begin && at < slice.end) all.push_back(row * columns + column);
    }
  return {all.begin() + slice.from, all.begin() + slice.to};
}

std::vector<TensorSlice> all_slices(const Shape& full) {
  std::vector<TensorSlice> slices;
  for (int split = 0; split < full.rank; ++split)
    for (std::int64_t begin = 0; begin < full[split]; ++begin)
      for (std::int64_t end = begin + 1; end <= full[split]; ++end) {
        TensorSlice slice{.split = split, .begin = begin, .end = end};
        const std::int64_t elements = range_elements(slice, full);
        for (slice.from = 0; slice.from < elements; ++slice.from)
          for (slice.to = slice.from + 1; slice.to <= elements; slice.to += 2) slices.push_back(slice);
      }
  return slices;
}

void expect_shared(const TensorSlice& a, const TensorSlice& b, const Shape& full) {
  const auto in_a = indices_of(a, full), in_b = indices_of(b, full);
  std::map<std::int64_t, std::int64_t> where;
  for (std::size_t i = 0; i < in_b.size(); ++i) where[in_b[i]] = static_cast<std::int64_t>(i);
  std::vector<std::pair<std::int64_t, std::int64_t>> expected, found;
  for (std::size_t i = 0; i < in_a.size(); ++i)
    if (const auto at = where.find(in_a[i]); at != where.end())
      expected.emplace_back(static_cast<std::int64_t>(i), at->second);
  const std::int64_t shared = for_each_shared(a, b, full, [&](const SharedRun& run) {
    EXPECT_GT(run.elements, 0);
    for (std::int64_t i = 0; i < run.elements; ++i) found.emplace_back(run.in_a + i, run.in_b + i);
  });
  ASSERT_EQ(found, expected) << a.split << " " << a.begin << "-" << a.end << " " << a.from << "-" << a.to << " and "
                             << b.split << " " << b.begin << "-" << b.end << " " << b.from << "-" << b.to;
  ASSERT_EQ(shared, static_cast<std::int64_t>(expected.size()));
}

TEST(TensorSlice, SharedElementsOfAllPairs) {
  for (const Shape& full : {shape(3, 3), shape(4, 2), shape(7), shape(2, 1)}) {
    const auto slices = all_slices(full);
    for (const TensorSlice& a : slices)
      for (const TensorSlice& b : slices) {
        expect_shared(a, b, full);
        if (HasFatalFailure()) return;
      }
  }
}

TEST(TensorSlice, Covers) {
  const Shape full = shape(4, 6);
  const auto cut = [](std::int64_t split, std::int64_t begin, std::int64_t end, std::int64_t from, std::int64_t to) {
    return TensorSlice{split, begin, end, from, to};
  };
  EXPECT_EQ(why_not_a_cover({full_slice(full)}, full), "");
  EXPECT_EQ(why_not_a_cover({cut(1, 3, 6, 0, 12), cut(1, 0, 3, 5, 12), cut(1, 0, 3, 0, 5)}, full), "");
  EXPECT_EQ(why_not_a_cover({cut(0, 0, 2, 0, 12), cut(0, 2, 4, 0, 1), cut(0, 2, 4, 1, 12)}, full), "");
  const std::vector<std::vector<TensorSlice>> bad{{},
                                                  {full_slice(full), full_slice(full)},  // twice
                                                  {cut(0, 0, 4, 0, 23)},                 // the last element is missing
                                                  {cut(0, 0, 4, 1, 24)},                 // the first one
                                                  {cut(0, 0, 4, 0, 10), cut(0, 0, 4, 9, 24)},   // overlap
                                                  {cut(0, 0, 4, 0, 10), cut(0, 0, 4, 11, 24)},  // gap
                                                  {cut(0, 0, 2, 0, 12), cut(0, 1, 4, 0, 18)},   // ranges overlap
                                                  {cut(0, 0, 1, 0, 6), cut(0, 2, 4, 0, 12)},    // a range is missing
                                                  {cut(0, 0, 2, 0, 12)},                        // the last range
                                                  {cut(0, 0, 2, 0, 12), cut(1, 3, 6, 0, 12)},   // two ways to cut
                                                  {cut(2, 0, 4, 0, 24)},                        // no such dim
                                                  {cut(0, 0, 5, 0, 30)},                        // too many rows
                                                  {cut(0, 0, 4, 0, 25)},
                                                  {cut(0, 2, 2, 0, 0)},
                                                  {cut(0, -1, 4, 0, 24)},
                                                  {cut(0, 0, 4, -1, 24)}};
  for (std::size_t i = 0; i < bad.size(); ++i) EXPECT_NE(why_not_a_cover(bad[i], full), "") << i;
}

}  // namespace
}  // namespace tera::test
