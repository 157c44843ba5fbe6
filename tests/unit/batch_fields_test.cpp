#include "tera/data/batching/batch_fields.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>

#include "tera/data/batching/context_split.h"

namespace tera::test {
namespace {

TEST(BatchFields, EveryNameIsThereOnce) {
  std::set<std::string> names;
  std::size_t fields = 0;
  for_each_batch_field([&](const auto& field) {
    names.emplace(field.name);
    ++fields;
  });
  EXPECT_EQ(names.size(), fields);
  EXPECT_TRUE(names.contains("tokens"));
}

TEST(BatchBuffers, HaveTheSizeOfEachInput) {
  const BatchBuffers packed({.rows = 6, .mtp_depths = 2, .packed = true});
  const BatchSpans& spans = packed.spans();
  EXPECT_EQ(spans.tokens.size(), 6u);
  EXPECT_EQ(spans.targets.size(), 6u);
  EXPECT_EQ(spans.positions.size(), 6u);
  EXPECT_EQ(spans.row_ids.size(), 6u);
  EXPECT_EQ(spans.offsets.size(), 7u);
  EXPECT_EQ(spans.mtp_tokens.size(), 12u);
  EXPECT_EQ(spans.mtp_targets.size(), 12u);
  EXPECT_EQ(packed.filled({.documents = 4}).offsets.size(), 5u);
  EXPECT_EQ(packed.filled({.documents = 4}).tokens.data(), spans.tokens.data());

  const BatchBuffers plain({.rows = 6});
  EXPECT_TRUE(plain.spans().offsets.empty());
  EXPECT_TRUE(plain.spans().mtp_tokens.empty());
  EXPECT_TRUE(plain.filled({}).offsets.empty());
}

TEST(BatchBuffers, KeepTheirSpansWhenMoved) {
  BatchBuffers first({.rows = 3});
  std::iota(first.spans().tokens.begin(), first.spans().tokens.end(), 7);
  const std::int32_t* where = first.spans().tokens.data();
  const BatchBuffers moved = std::move(first);
  EXPECT_EQ(moved.spans().tokens.data(), where);
  EXPECT_EQ(moved.spans().tokens[2], 9);
}

TEST(BatchSizes, ARankHasItsOwnRowsOfWhatIsSplit) {
  const BatchSizes sizes{.rows = 3, .mtp_depths = 2, .packed = true, .all_rows = 12};
  EXPECT_EQ(sizes.elements(PerField::row, /*split=*/true), 3);
  EXPECT_EQ(sizes.elements(PerField::row, /*split=*/false), 12);
  EXPECT_EQ(sizes.elements(PerField::mtp_row, /*split=*/true), 6);
  EXPECT_EQ(sizes.elements(PerField::document, /*split=*/false), 13);
}

TEST(BatchSpans, FirstRowsOfEveryInput) {
  const BatchBuffers buffers({.rows = 6, .mtp_depths = 2, .packed = true});
  const BatchSpans part = buffers.spans().first(4);
  EXPECT_EQ(part.tokens.size(), 4u);
  EXPECT_EQ(part.row_ids.size(), 4u);
  EXPECT_EQ(part.offsets.size(), 5u);
  EXPECT_EQ(part.mtp_targets.size(), 8u);
  EXPECT_EQ(part.mtp_targets.data(), buffers.spans().mtp_targets.data());
}

// Two ranks, one sequence of 8 rows: rank 1 has rows 2 to 5, at every depth.
TEST(ContextParallelSplit, SplitsEveryDepth) {
  BatchBuffers all({.rows = 8, .mtp_depths = 2});
  const BatchSpans& rows = all.spans();
  std::iota(rows.mtp_tokens.begin(), rows.mtp_tokens.end(), 100);
  std::iota(rows.mtp_targets.begin(), rows.mtp_targets.end(), 200);
  ContextParallelSplit split({.sequences = 1, .seq_length = 8, .ranks = 2, .rank = 1, .mtp_depths = 2});
  const auto list = [](auto span) { return std::vector<std::int32_t>(span.begin(), span.end()); };
  const BatchSpans local = split.local_rows(rows);
  EXPECT_EQ(list(local.mtp_tokens), (std::vector{102, 103, 104, 105, 110, 111, 112, 113}));
  EXPECT_EQ(list(local.mtp_targets), (std::vector{202, 203, 204, 205, 210, 211, 212, 213}));
}

}  // namespace
}  // namespace tera::test
