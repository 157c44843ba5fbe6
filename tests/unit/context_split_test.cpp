// The zigzag split of a microbatch's rows over context-parallel ranks.

#include "tera/data/batching/context_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "tera/base/error.h"

namespace tera {
namespace {

using Ints = std::vector<std::int32_t>;

Ints offsets_of(const Ints& lengths) {
  Ints offsets{0};
  for (const std::int32_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

// Rows of each rank.
std::vector<Ints> split(const Ints& lengths, int ranks) {
  const Ints offsets = offsets_of(lengths);
  Ints rows(static_cast<std::size_t>(offsets.back()), -1);
  split_context(offsets, ranks, rows);
  std::vector<Ints> each(static_cast<std::size_t>(ranks));
  const auto own = static_cast<std::ptrdiff_t>(rows.size()) / ranks;
  for (std::ptrdiff_t r = 0; r < ranks; ++r)
    each[static_cast<std::size_t>(r)].assign(rows.begin() + r * own, rows.begin() + (r + 1) * own);
  return each;
}

TEST(ContextSplit, PiecesFromBothEnds) {
  EXPECT_EQ(split({8}, 2), (std::vector<Ints>{{0, 1, 6, 7}, {2, 3, 4, 5}}));
  EXPECT_EQ(split({8, 8}, 4), (std::vector<Ints>{{0, 7, 8, 15}, {1, 6, 9, 14}, {2, 5, 10, 13}, {3, 4, 11, 12}}));
  EXPECT_EQ(split({5}, 1), (std::vector<Ints>{{0, 1, 2, 3, 4}}));
}

// 5 = 2 + 1 + 1 + 1 rows in pieces of ranks 0, 1, 1, 0; of the next, rank 1 has two, as it has fewer.
TEST(ContextSplit, WhatIsLeftOverGoesToWhoHasFewest) {
  EXPECT_EQ(split({5, 3}, 2), (std::vector<Ints>{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(split({1, 1, 1, 1}, 2), (std::vector<Ints>{{0, 2}, {1, 3}}));
}

// Pairs of a query and a key that it sees.
std::int64_t work(const Ints& rows, const Ints& offsets) {
  std::int64_t pairs = 0;
  for (const std::int32_t row : rows) pairs += row - *(std::ranges::upper_bound(offsets, row) - 1) + 1;
  return pairs;
}

TEST(ContextSplit, EveryRowOnceAndAsMuchToDo) {
  std::mt19937 random(5);  // NOLINT(cert-msc51-cpp): the same in every run
  for (int trial = 0; trial < 300; ++trial) {
    const int ranks = std::vector{1, 2, 3, 4, 8}[random() % 5];
    const std::int32_t sequence = 2 * ranks * static_cast<std::int32_t>(1 + random() % 12);
    const auto sequences = static_cast<std::int32_t>(1 + random() % 3);
    Ints lengths;
    for (std::int32_t i = 0; i < sequences; ++i)
      for (std::int32_t left = sequence; left > 0;) {
        lengths.push_back(1 + static_cast<std::int32_t>(random() % static_cast<unsigned>(left)));
        left -= lengths.back();
      }
    lengths.push_back(0);  // the loader rounds up the number of documents
    const Ints offsets = offsets_of(lengths);
    const std::vector<Ints> each = split(lengths, ranks);

    Ints all;
    for (const Ints& rows : each) {
      EXPECT_TRUE(std::ranges::is_sorted(rows));
      all.insert(all.end(), rows.begin(), rows.end());
    }
    std::ranges::sort(all);
    Ints expected(all.size());
    std::iota(expected.begin(), expected.end(), 0);
    ASSERT_EQ(all, expected);

    for (std::size_t i = 1; i < offsets.size(); ++i) {  // counts up to the end of every document
      Ints counts;
      for (const Ints& rows : each)
        counts.push_back(static_cast<std::int32_t>(std::ranges::lower_bound(rows, offsets[i]) - rows.begin()));
      const auto [least, largest] = std::ranges::minmax(counts);
      EXPECT_LE(largest - least, offsets[i] % sequence == 0 ? 0 : 1);
    }

    // A row more or less in each of two pieces of a document, each as far apart as the document is long.
    std::int64_t least = work(each[0], offsets), largest = least, slack = 0;
    for (const Ints& rows : each) {
      least = std::min(least, work(rows, offsets));
      largest = std::max(largest, work(rows, offsets));
    }
    for (const std::int32_t length : lengths) slack += length % (2 * ranks) == 0 ? 0 : 2 * length;
    EXPECT_LE(largest - least, slack);
  }
}

TEST(ContextSplit, EvenSequencesAreEvenWork) {
  const Ints offsets = offsets_of({48, 48});
  const std::vector<Ints> each = split({48, 48}, 4);
  for (const Ints& rows : each) EXPECT_EQ(work(rows, offsets), work(each[0], offsets));
}

TEST(ContextSplit, RefusesWhatDoesNotFit) {
  Ints rows(6);
  EXPECT_THROW(split_context(Ints{0, 6}, 4, rows), Error);
  EXPECT_THROW(split_context(Ints{0, 5}, 2, rows), Error);
  EXPECT_THROW(split_context(Ints{0, 4, 2, 6}, 2, rows), Error);
  EXPECT_THROW(split_context(Ints{}, 2, rows), Error);
}

TEST(ContextParallelSplit, OwnRowsAndWhereTheOthersAre) {
  Ints tokens(8), targets(8), positions(8);
  std::iota(tokens.begin(), tokens.end(), 100);
  std::iota(targets.begin(), targets.end(), 200);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<std::int64_t> ids(8);
  std::iota(ids.begin(), ids.end(), std::int64_t{1} << 40);
  Ints offsets{0, 5, 8};
  ContextParallelSplit cut({.sequences = 1, .seq_length = 8, .ranks = 2, .rank = 1, .packed = true});
  const auto as_list = [](auto span) { return std::vector(span.begin(), span.end()); };

  const BatchSpans own = cut.local_rows({tokens, targets, positions, ids, offsets});
  EXPECT_EQ(as_list(own.tokens), (Ints{102, 103, 106, 107}));
  EXPECT_EQ(as_list(own.targets), (Ints{202, 203, 206, 207}));
  EXPECT_EQ(as_list(own.positions), (Ints{2, 3, 6, 7}));
  EXPECT_EQ(own.row_ids[3], (std::int64_t{1} << 40) + 7);
  EXPECT_EQ(as_list(own.offsets), offsets) << "documents are those of all rows";
  EXPECT_EQ(as_list(cut.cp_order_rows()), (Ints{0, 1, 4, 5, 2, 3, 6, 7}));
  EXPECT_EQ(as_list(cut.cp_order()), (Ints{0, 1, 4, 5, 2, 3, 6, 7}));

  EXPECT_EQ(as_list(cut.positions()), (Ints{0, 1, 2, 3, 4, 0, 1, 2}));
  EXPECT_EQ(as_list(cut.cp_order_positions()), (Ints{0, 1, 4, 0, 2, 3, 1, 2}));
  EXPECT_EQ(as_list(cut.cp_order_offsets()), (Ints{0, 3, 4, 0, 2, 4}));
  EXPECT_EQ(cut.cp_order_row_ids()[4], (std::int64_t{1} << 40) + 2);

  ContextParallelSplit unpacked({.sequences = 1, .seq_length = 8, .ranks = 2, .rank = 1});
  const BatchSpans whole = unpacked.local_rows({tokens, targets, positions, ids});
  EXPECT_EQ(as_list(whole.tokens), (Ints{102, 103, 104, 105}));
  EXPECT_TRUE(whole.offsets.empty());
  EXPECT_TRUE(unpacked.cp_order_offsets().empty());
  EXPECT_EQ(as_list(unpacked.cp_order_positions()), (Ints{0, 1, 6, 7, 2, 3, 4, 5}));

  ContextParallelSplit alone({.sequences = 1, .seq_length = 8});
  EXPECT_EQ(alone.local_rows({tokens, targets, positions, ids}).tokens.data(), tokens.data());
}

}  // namespace
}  // namespace tera
