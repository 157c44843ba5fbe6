#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tera/base/error.h"
#include "tera/data/batching/prefetch.h"
#include "tests/support/count_news.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using Ids = std::vector<std::int32_t>;

// Sample i is 100 i, 100 i + 1, ...; some take longer than others, so that readers overtake each other.
class UnevenDataset : public Dataset {
 public:
  std::int64_t samples() const override { return 1000; }
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override {
    if (index == bad) fail_user("words.bin: token {} is wrong", index);
    std::this_thread::sleep_for(std::chrono::microseconds(index % 3 * 300));
    for (std::size_t t = 0; t < tokens.size(); ++t)
      tokens[t] = static_cast<std::int32_t>(100 * index) + static_cast<std::int32_t>(t);
    ++reads;
  }
  std::int64_t bad = -1;
  mutable std::atomic<int> reads = 0;
};

BatchOptions two_rows() { return {.seq_length = 3, .micro_batch_size = 2, .global_batch_size = 6}; }

BatchShape six_samples() {
  BatchShape batch;
  batch.micro_batch = 2, batch.global_batch = 6, batch.num_microbatches = 3;
  return batch;
}

std::unique_ptr<BatchJobs> steps(std::int64_t consumed, std::int64_t number) {
  return std::make_unique<TrainJobs>(TrainJobs::Options{.consumed = consumed, .steps = number, .batch = six_samples()});
}

struct Read {
  Ids tokens, targets, positions;
  std::vector<std::int64_t> row_ids;
  std::int64_t own, all;
  bool operator==(const Read&) const = default;
};

Read copy(const Prefetch::Loaded& batch) {
  return {Ids(batch.rows.tokens.begin(), batch.rows.tokens.end()),
          Ids(batch.rows.targets.begin(), batch.rows.targets.end()),
          Ids(batch.rows.positions.begin(), batch.rows.positions.end()),
          {batch.rows.row_ids.begin(), batch.rows.row_ids.end()},
          batch.local_targets,
          batch.all_targets};
}

std::vector<Read> read_all(std::int64_t consumed, std::int64_t number, int workers, int ready) {
  const UnevenDataset data;
  Prefetch prefetch({BatchSource{&data}}, steps(consumed, number),
                    {.batch = two_rows(), .workers = workers, .ready = ready});
  std::vector<Read> all;
  for (std::int64_t i = 0; i < 3 * number; ++i) all.push_back(copy(prefetch.next()));
  EXPECT_EQ(data.reads, 6 * number) << "samples past the last step were read";
  EXPECT_TRUE(contains(message_of<Error>([&] { prefetch.next(); }), "after the last"));
  return all;
}

TEST(Prefetch, GivesTheSameBatchesWhoeverReads) {
  const auto in_line = read_all(0, 20, 0, 1);
  EXPECT_EQ(in_line[4].tokens, (Ids{800, 801, 802, 900, 901, 902}));
  EXPECT_EQ(in_line[4].own, 6);
  EXPECT_EQ(in_line[3].all, 18);
  for (const int workers : {1, 2, 5})
    for (const int ready : {1, 3, 8}) EXPECT_EQ(read_all(0, 20, workers, ready), in_line) << workers << " " << ready;
}

TEST(Prefetch, ResumesFromTheSamplesConsumed) {
  const auto whole = read_all(0, 10, 2, 3), rest = read_all(24, 6, 2, 3);
  EXPECT_EQ(rest, std::vector(whole.begin() + 12, whole.end()));
}

// Documents of 1 to 7 rows in sequences of 8, each ended by 0.
class DocumentsDataset final : public Dataset {
 public:
  std::int64_t samples() const override { return 1000; }
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override {
    std::this_thread::sleep_for(std::chrono::microseconds(index % 3 * 100));
    std::int64_t number = index, left = 1 + index % 7;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const bool ends = --left == 0;
      tokens[t] = ends ? 0 : static_cast<std::int32_t>(10 * index) + static_cast<std::int32_t>(t) + 1;
      if (ends) left = 1 + ++number % 7;
    }
  }
};

// What one of the two ranks of one of two replicas reads, step by step.
struct Assigned {
  std::vector<Read> read;
  std::vector<std::int64_t> microbatches;
  bool operator==(const Assigned&) const = default;
};

Assigned read_assigned(std::int64_t consumed, std::int64_t number, int workers, int ready, int rank = 0) {
  const DocumentsDataset data;
  BatchShape batch;
  batch.micro_batch = 1, batch.global_batch = 6, batch.num_microbatches = 3, batch.max_dynamic_microbatches = 4;
  const BatchOptions options{.seq_length = 8,
                             .micro_batch_size = 1,
                             .global_batch_size = 6,
                             .data_ranks = 2,
                             .eod = 0,
                             .eod_mask_loss = true,
                             .reset_attention_mask = true};
  const DynamicCpLoader::Options scheduler{.scheduler = {.rows = 4,
                                                         .ranks = 2,
                                                         .replicas = 2,
                                                         .counts = {1, 2, 3, 4},
                                                         .costs = {.row = 100, .pair = 1, .sent = 100},
                                                         .documents = 64},
                                           .rank = rank};
  Prefetch prefetch(
      {BatchSource{&data}},
      std::make_unique<TrainJobs>(TrainJobs::Options{.consumed = consumed, .steps = number, .batch = batch}),
      {.batch = options, .workers = workers, .ready = ready, .dynamic_cp = scheduler});
  Assigned all;
  for (std::int64_t i = 0; i < 4 * number; ++i) {
    const Prefetch::Loaded& loaded = prefetch.next();
    if (i % 4 == 0) all.microbatches.push_back(loaded.scheduler->microbatches());
    EXPECT_EQ(loaded.rows.tokens.empty(), i % 4 >= loaded.scheduler->microbatches());
    if (!loaded.rows.tokens.empty()) {
      EXPECT_EQ(loaded.rows.tokens.size(), 4u * loaded.scheduler->degree(i % 4, 0));
    }
    all.read.push_back(copy(loaded));
  }
  return all;
}

// A reader that finds wrong data in a step tries again with each of its microbatches; steps that were assigned before
// stay.
TEST(DynamicCpLoader, AStepThatFailsTakesNoOthersPlace) {
  UnevenDataset data;
  data.bad = 7;
  BatchLoader loader(
      data, {.seq_length = 8, .micro_batch_size = 1, .global_batch_size = 4, .eod = 0, .reset_attention_mask = true});
  DynamicCpLoader dynamic_cp_loader({.scheduler = {.rows = 4, .ranks = 2, .counts = {1, 2, 3, 4, 5}}, .steps = 2});
  const DynamicCpLoader::Step& first = dynamic_cp_loader.step(loader, 0, 4);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(dynamic_cp_loader.step(loader, 4, 4), UserError);
    const int reads = data.reads;
    EXPECT_EQ(&dynamic_cp_loader.step(loader, 0, 4), &first);
    EXPECT_EQ(data.reads, reads) << "it is still there";
  }
}

TEST(Prefetch, AssignedDocumentsAreTheSameWhoeverReads) {
  const Assigned in_line = read_assigned(0, 20, 0, 1);
  EXPECT_GT(std::ranges::count_if(in_line.read, [](const Read& read) { return read.tokens.size() == 8; }), 0);
  EXPECT_GT(std::ranges::count_if(in_line.read, [](const Read& read) { return read.tokens.size() == 4; }), 0);
  for (const int workers : {1, 2, 5})
    for (const int ready : {1, 3, 8})
      EXPECT_EQ(read_assigned(0, 20, workers, ready), in_line) << workers << " " << ready;
  const Assigned rest = read_assigned(60, 10, 2, 3);
  EXPECT_EQ(rest.read, std::vector(in_line.read.begin() + 40, in_line.read.end())) << "a run that goes on";
  // Ranks that share documents read the same; other ranks have documents of their own.
  const Assigned other = read_assigned(0, 20, 2, 3, /*rank=*/1);
  ASSERT_EQ(other.read.size(), in_line.read.size());
  for (std::size_t i = 0; i < other.read.size(); ++i) {
    EXPECT_EQ(other.read[i].tokens.size(), in_line.read[i].tokens.size());
    const bool shared = other.read[i].tokens.size() != 4;  // true, too, where neither rank has rows
    if (other.read[i].own + in_line.read[i].own > 0) {
      EXPECT_EQ(other.read[i] == in_line.read[i], shared) << i;
    }
  }
}

// Prefetched batches are returned even when nothing more can be read.
class GatedDataset final : public UnevenDataset {
 public:
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override {
    while (index >= open) std::this_thread::yield();
    UnevenDataset::sample(index, tokens);
  }
  std::atomic<std::int64_t> open = 0;
};

TEST(Prefetch, PrefetchesWithoutBeingAsked) {
  GatedDataset data;
  data.open = 12;
  Prefetch prefetch({BatchSource{&data}}, steps(0, 5), {.batch = two_rows(), .workers = 1, .ready = 5});
  while (data.reads < 12) std::this_thread::yield();
  for (std::int32_t i = 0; i < 5; ++i) EXPECT_EQ(prefetch.next().rows.tokens[0], 200 * i);
  prefetch.take_waited_ms();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    data.open = 1000;
  });
  prefetch.next(), prefetch.next();
  EXPECT_GE(prefetch.take_waited_ms(), 5);
  EXPECT_EQ(prefetch.take_waited_ms(), 0);
  later.join();
}

TEST(Prefetch, ReportsWhatAReaderFoundInOrder) {
  UnevenDataset data;
  data.bad = 9;
  for (const int workers : {0, 1, 3}) {
    Prefetch prefetch({BatchSource{&data}}, steps(0, 5), {.batch = two_rows(), .workers = workers, .ready = 6});
    for (std::int32_t i = 0; i < 4; ++i) EXPECT_EQ(prefetch.next().rows.tokens[0], 200 * i);
    EXPECT_EQ(message_of<UserError>([&] { prefetch.next(); }), "sample 9: words.bin: token 9 is wrong");
  }
}

TEST(Prefetch, EndsWhileOthersReadOrWait) {
  const UnevenDataset data;
  for (int i = 0; i < 20; ++i) {
    Prefetch prefetch({BatchSource{&data}}, steps(0, 50), {.batch = two_rows(), .workers = 3, .ready = 4});
    for (int j = 0; j < i % 5; ++j) prefetch.next();
  }
}

TEST(Prefetch, AllocatesNothingOnceItRuns) {
  const MockDataset data(512, 1);
  Prefetch prefetch({BatchSource{&data}}, steps(0, 50), {.batch = two_rows(), .workers = 2, .ready = 3});
  prefetch.next();
  EXPECT_EQ(news_during([&] {
              for (int i = 0; i < 100; ++i) prefetch.next();
            }),
            0);
}

TEST(Prefetch, EvaluatesEachDatasetAgainAndAgain) {
  const UnevenDataset first, second;
  Prefetch prefetch(
      {BatchSource{&first}, BatchSource{&second}},
      std::make_unique<EvaluationJobs>(EvaluationJobs::Options{.batches = {1, 2}, .batch = six_samples()}),
      {.batch = two_rows(), .workers = 1, .ready = 3});
  Ids seen;
  for (int i = 0; i < 18; ++i) seen.push_back(prefetch.next().rows.tokens[0] / 100);
  const Ids once{0, 2, 4, 0, 2, 4, 6, 8, 10};
  EXPECT_EQ(Ids(seen.begin(), seen.begin() + 9), once);
  EXPECT_EQ(Ids(seen.begin() + 9, seen.end()), once);
}

TEST(BatchLoader, ReadsNothingWhereNobodyLooksAtIds) {
  UnevenDataset data;
  BatchOptions options = two_rows();
  options.needs_ids = false;
  Prefetch prefetch({BatchSource{&data}}, steps(6, 1), {.batch = options});
  const Prefetch::Loaded& batch = prefetch.next();
  EXPECT_EQ(data.reads, 0);
  EXPECT_EQ(batch.all_targets, 18);
  EXPECT_EQ(Ids(batch.rows.positions.begin(), batch.rows.positions.end()), (Ids{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(batch.rows.row_ids[5], 23);
}

}  // namespace
}  // namespace tera::test
