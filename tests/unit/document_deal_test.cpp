// The scheduler of dynamic context parallelism: which ranks compute which documents of a step.

#include "tera/data/batching/dynamic_cp_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace tera {
namespace {

using Documents = std::vector<AssignedDocument>;

// All numbers of microbatches up to a quarter more than the sequences need.
DynamicCpOptions options_for(std::int64_t rows, int ranks, int replicas, std::int64_t microbatches) {
  DynamicCpOptions options{
      .rows = rows, .ranks = ranks, .replicas = replicas, .counts = {}, .costs = {.row = 1000, .pair = 1, .sent = 10}};
  for (std::int64_t i = 1; i <= microbatches + (microbatches + 3) / 4; ++i) options.counts.push_back(i);
  return options;
}

// Packs lengths in the order of the data into one sequence after the other; a document that does not fit begins the
// next, so there may be gaps. Returns the number of microbatches.
std::int64_t lay_out(const std::vector<std::int64_t>& lengths, std::int64_t sequence_rows, int replicas,
                     Documents& documents) {
  std::int64_t sequence = 0, used = 0;
  for (const std::int64_t length : lengths) {
    if (used + length > sequence_rows) {
      ++sequence;
      used = 0;
    }
    used += length;
    documents.push_back({.rows = static_cast<std::int32_t>(length), .sequence = sequence});
  }
  return sequence / replicas + 1;
}

// Checks every rule of an assignment, and its cost by definition. `mean` gets the time of the mean rank.
void expect_sound(const DynamicCpScheduler& scheduler, const Documents& documents, double* mean = nullptr) {
  const DynamicCpOptions& options = scheduler.options();
  ASSERT_TRUE(std::ranges::binary_search(options.counts, scheduler.microbatches()));
  std::vector<int> seen(documents.size());
  std::int64_t rows_in_all = 0;
  std::vector<double> of_rank(static_cast<std::size_t>(options.ranks * options.replicas));
  double together = 0;
  for (std::int64_t microbatch = 0; microbatch < scheduler.microbatches(); ++microbatch) {
    double max_cost = 0;
    for (int replica = 0; replica < options.replicas; ++replica) {
      const int degree = scheduler.degree(microbatch, replica);
      ASSERT_EQ(options.ranks % degree, 0);
      for (int rank = 0; rank < options.ranks; ++rank) {
        const auto mine = scheduler.documents(microbatch, replica, rank);
        const auto first = scheduler.documents(microbatch, replica, rank / degree * degree);
        ASSERT_EQ(mine.data(), first.data()) << "ranks of a block have the same documents";
        ASSERT_EQ(mine.size(), first.size());
        ASSERT_TRUE(std::ranges::is_sorted(mine));
        std::int64_t rows = 0;
        double pairs = 0;
        for (const std::int32_t i : mine) {
          const double length = documents[static_cast<std::size_t>(i)].rows;
          rows += documents[static_cast<std::size_t>(i)].rows;
          pairs += length * (length + 1) / 2;
          if (rank % degree == 0) ++seen[static_cast<std::size_t>(i)];
        }
        ASSERT_LE(rows, degree * options.rows);
        if (rank % degree == 0) rows_in_all += rows;
        const DynamicCpCosts& costs = options.costs;
        const double cost =
            static_cast<double>(options.rows) * (costs.row + (degree - 1) * costs.sent) + pairs / degree * costs.pair;
        of_rank[static_cast<std::size_t>(replica * options.ranks + rank)] += cost;
        max_cost = std::max(max_cost, cost);
      }
    }
    together += max_cost;
  }
  EXPECT_TRUE(std::ranges::all_of(seen, [](int times) { return times == 1; })) << "a document lost, or twice";
  const double cost = options.lockstep ? together : *std::ranges::max_element(of_rank);
  EXPECT_NEAR(scheduler.cost(), cost, 1e-9 * cost);
  if (mean) *mean = std::accumulate(of_rank.begin(), of_rank.end(), 0.0) / static_cast<double>(of_rank.size());
  EXPECT_LE(scheduler.cost(), scheduler.static_cost());
  const auto capacity = static_cast<double>(scheduler.microbatches() * options.replicas * options.ranks * options.rows);
  EXPECT_NEAR(scheduler.padding(), 1 - static_cast<double>(rows_in_all) / capacity, 1e-12);
}

std::vector<std::int64_t> long_tailed(std::size_t number, std::int64_t longest, double median, unsigned seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> lengths(std::log(median), 1.0);
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < number; ++i)
    out.push_back(i % 100 == 50 ? longest
                                : std::clamp<std::int64_t>(static_cast<std::int64_t>(lengths(random)), 1, longest));
  return out;
}

TEST(DynamicCpScheduler, ShortDocumentsAreNotCut) {
  Documents documents;
  const std::int64_t microbatches = lay_out({3, 5, 4, 4, 8, 1, 2, 5, 6, 2, 8, 7, 1, 3, 5}, 32, 1, documents);
  DynamicCpScheduler scheduler(options_for(8, 4, 1, microbatches));
  scheduler.assign(documents, microbatches);
  expect_sound(scheduler, documents);
  EXPECT_FALSE(scheduler.is_static());
  for (std::int64_t i = 0; i < scheduler.microbatches(); ++i) EXPECT_EQ(scheduler.degree(i, 0), 1);
}

TEST(DynamicCpScheduler, ADocumentGetsAsManyRanksAsItNeeds) {
  DynamicCpOptions options = options_for(8, 8, 1, 1);
  options.costs.pair = 1e-6;
  DynamicCpScheduler scheduler(options);
  for (const auto& [rows, degree] :
       std::vector<std::pair<std::int32_t, int>>{{1, 1}, {8, 1}, {9, 2}, {16, 2}, {17, 4}, {32, 4}, {33, 8}, {64, 8}}) {
    const Documents one{{.rows = rows, .sequence = 0}};
    scheduler.assign(one, 1);
    expect_sound(scheduler, one);
    EXPECT_EQ(scheduler.degree(0, 0), degree) << rows;
  }
}

TEST(DynamicCpScheduler, LongDocumentsShareAMicrobatch) {
  Documents documents;
  std::vector<std::int64_t> lengths(64, 16);
  lengths[0] = lengths[40] = 64;  // on other replicas and in other microbatches, as they are
  const std::int64_t microbatches = lay_out(lengths, 64, 2, documents);
  DynamicCpOptions options = options_for(16, 4, 2, microbatches);
  options.lockstep = true;
  DynamicCpScheduler scheduler(options);
  scheduler.assign(documents, microbatches);
  expect_sound(scheduler, documents);
  EXPECT_EQ(scheduler.degree(0, 0), 4);
  EXPECT_EQ(scheduler.degree(0, 1), 4);
  for (std::int64_t i = 1; i < scheduler.microbatches(); ++i)
    for (int replica = 0; replica < 2; ++replica) EXPECT_EQ(scheduler.degree(i, replica), 1);
}

// One rank would be at work for long while the others have nothing to do.
TEST(DynamicCpScheduler, ALoneDocumentIsCutWhereThatIsFaster) {
  DynamicCpOptions options = options_for(1000, 4, 1, 1);
  options.costs = {.row = 1, .pair = 1, .sent = 1};
  DynamicCpScheduler scheduler(options);
  const Documents one{{.rows = 1000, .sequence = 0}};
  scheduler.assign(one, 1);
  expect_sound(scheduler, one);
  EXPECT_EQ(scheduler.degree(0, 0), 4);
}

TEST(DynamicCpScheduler, WhatNeedsTooManyMicrobatchesStaysAsItIs) {
  Documents documents;
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 8; ++i) lengths.insert(lengths.end(), {11, 11, 10});  // no three fill two ranks of 16
  const std::int64_t microbatches = lay_out(lengths, 32, 1, documents);
  DynamicCpOptions options = options_for(8, 4, 1, microbatches);
  options.costs.sent = 0;
  DynamicCpScheduler scheduler(options);
  scheduler.assign(documents, microbatches);
  expect_sound(scheduler, documents);
  EXPECT_TRUE(scheduler.is_static());
  EXPECT_EQ(scheduler.microbatches(), microbatches);
  EXPECT_EQ(scheduler.cost(), scheduler.static_cost());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const auto mine = scheduler.documents(documents[i].sequence, 0, 0);
    EXPECT_TRUE(std::ranges::binary_search(mine, static_cast<std::int32_t>(i)));
  }
}

// Sequences that are full to the last row allow no gaps; still no replica has to have all the long documents.
TEST(DynamicCpScheduler, FullSequencesAreAssignedUncut) {
  Documents documents;
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 4; ++i) lengths.insert(lengths.end(), {64, 22, 21, 21});  // the first replica has the long ones
  ASSERT_EQ(lay_out(lengths, 64, 2, documents), 4);
  for (const bool lockstep : {false, true}) {
    DynamicCpOptions options = options_for(16, 4, 2, 4);
    options.lockstep = lockstep;
    DynamicCpScheduler scheduler(options);
    scheduler.assign(documents, 4);
    expect_sound(scheduler, documents);
    EXPECT_FALSE(scheduler.is_static());
    EXPECT_EQ(scheduler.microbatches(), 4);
    EXPECT_EQ(scheduler.padding(), 0);
    std::array<int, 2> long_ones{};
    for (std::int64_t i = 0; i < 4; ++i)
      for (int replica = 0; replica < 2; ++replica) {
        const auto here = scheduler.documents(i, replica, 0);
        ASSERT_EQ(scheduler.degree(i, replica), 4);
        for (const std::int32_t document : here)
          EXPECT_EQ(documents[static_cast<std::size_t>(document)].sequence,
                    documents[static_cast<std::size_t>(here.front())].sequence);
        long_ones[static_cast<std::size_t>(replica)] += here.size() == 1 ? 1 : 0;
      }
    EXPECT_EQ(long_ones, (std::array{2, 2}));
  }
}

TEST(DynamicCpScheduler, FewerMicrobatchesWhereSequencesHaveGaps) {
  Documents documents;
  for (std::int64_t i = 0; i < 16; ++i) documents.push_back({.rows = 8, .sequence = i});  // sequences of 64 rows each
  DynamicCpScheduler scheduler(options_for(16, 4, 1, 16));
  scheduler.assign(documents, 16);
  expect_sound(scheduler, documents);
  EXPECT_EQ(scheduler.microbatches(), 2);
  EXPECT_EQ(scheduler.padding(), 0);
}

TEST(DynamicCpScheduler, OddInputs) {
  for (const bool lockstep : {false, true})
    for (const int ranks : {1, 2, 4, 6, 8})
      for (const int replicas : {1, 3}) {
        const std::int64_t rows = 24, sequence = rows * ranks;
        for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{},
                                                         {1},
                                                         {sequence},
                                                         std::vector<std::int64_t>(50, sequence),
                                                         std::vector<std::int64_t>(100, rows),
                                                         std::vector<std::int64_t>(100, rows / 2 + 1),
                                                         std::vector<std::int64_t>(3000, 1),
                                                         long_tailed(500, sequence, 6, 1)}) {
          Documents documents;
          const std::int64_t microbatches = lay_out(lengths, sequence, replicas, documents);
          DynamicCpOptions options = options_for(rows, ranks, replicas, microbatches);
          options.lockstep = lockstep;
          DynamicCpScheduler scheduler(options);
          scheduler.assign(documents, microbatches);
          expect_sound(scheduler, documents);
        }
      }
}

TEST(DynamicCpScheduler, TheSameOnEveryRankAndWhateverCameBefore) {
  Documents first, second;
  const std::int64_t rows = 512;
  const std::int64_t before = lay_out(long_tailed(900, 4096, 300, 3), 4096, 2, first),
                     then = lay_out(long_tailed(700, 4096, 300, 4), 4096, 2, second);
  const DynamicCpOptions options = options_for(rows, 8, 2, std::max(before, then));
  DynamicCpScheduler used(options), fresh(options);
  used.assign(first, before);
  used.assign(second, then);
  fresh.assign(second, then);
  ASSERT_EQ(used.microbatches(), fresh.microbatches());
  for (std::int64_t i = 0; i < used.microbatches(); ++i)
    for (int replica = 0; replica < 2; ++replica) {
      ASSERT_EQ(used.degree(i, replica), fresh.degree(i, replica));
      for (int rank = 0; rank < 8; ++rank)
        ASSERT_TRUE(std::ranges::equal(used.documents(i, replica, rank), fresh.documents(i, replica, rank)));
    }
}

// One in a hundred documents fills a sequence, the others are short. Sequences over all ranks cost more, as some
// replicas have the long ones while others wait.
TEST(DynamicCpScheduler, LongTail) {
  Documents documents;
  const std::int64_t microbatches = lay_out(long_tailed(10000, 32768, 2048, 5), 32768, 4, documents);
  DynamicCpOptions options = options_for(4096, 8, 4, microbatches);
  options.costs = {.row = 450e6, .pair = 16384, .sent = 4.1e6};  // costs of Llama 3.1 8B
  for (const bool lockstep : {false, true}) {
    options.lockstep = lockstep;
    DynamicCpScheduler scheduler(options);
    scheduler.assign(documents, microbatches);
    double mean = 0;
    expect_sound(scheduler, documents, &mean);
    EXPECT_LT(scheduler.cost(), scheduler.static_cost());
    EXPECT_LT(scheduler.cost(), 1.02 * mean) << "nobody waits long";
    EXPECT_LT(scheduler.padding(), 0.03);
    RecordProperty("percent", static_cast<int>(100 * scheduler.cost() / scheduler.static_cost()));
  }
}

}  // namespace
}  // namespace tera
