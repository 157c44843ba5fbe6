// Which samples the ranks of a run read. The orders of the cyclic sampler are Megatron-LM's and torch's, printed by
// them.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <thread>

#include "tera/base/error.h"
#include "tera/data/batching/batch_loader.h"
#include "tera/data/batching/sampler.h"
#include "tera/data/once_dataset.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using Numbers = std::vector<std::int64_t>;

std::vector<std::uint32_t> permutation(std::uint32_t seed, std::size_t n) {
  std::vector<std::uint32_t> order(n);
  torch_permutation(seed, order);
  return order;
}

TEST(TorchPermutation, IsTorchs) {
  using Order = std::vector<std::uint32_t>;
  EXPECT_EQ(permutation(0, 10), (Order{4, 1, 7, 5, 3, 9, 0, 8, 6, 2}));
  EXPECT_EQ(permutation(1, 12), (Order{1, 4, 6, 8, 11, 0, 5, 3, 2, 9, 10, 7}));
  EXPECT_EQ(permutation(3, 7), (Order{5, 3, 4, 6, 0, 2, 1}));
  EXPECT_EQ(permutation(5, 24),
            (Order{11, 8, 13, 6, 10, 0, 16, 19, 3, 2, 17, 12, 23, 20, 22, 21, 5, 14, 1, 18, 15, 9, 4, 7}));
  const Order large = permutation(7, 100000);
  EXPECT_EQ(Order(large.begin(), large.begin() + 5), (Order{41615, 23657, 92717, 16389, 28607}));
  EXPECT_EQ(permutation(0, 1), Order{0});
}

// What rank `rank` reads in two epochs.
Numbers two_epochs(CyclicSampler& sampler, std::int64_t batch, std::int64_t ranks, std::int64_t rank) {
  Numbers read;
  for (std::int64_t position = 0; position < 2 * sampler.samples_per_epoch(); ++position)
    if (position / batch % ranks == rank) read.push_back(sampler.at(position));
  return read;
}

struct MegatronCase {
  CyclicSampler::Options options;
  std::vector<Numbers> reads;  // each rank's samples in two epochs
};

TEST(CyclicSampler, IsMegatrons) {
  const std::vector<MegatronCase> cases{
      {{.samples = 13, .micro_batch_size = 2, .data_ranks = 3},
       {{0, 1, 3, 2, 1, 3, 2, 0}, {4, 5, 7, 6, 5, 7, 6, 4}, {8, 9, 11, 10, 9, 11, 10, 8}}},
      {{.samples = 13, .micro_batch_size = 2, .data_ranks = 3, .data_sharding = false},
       {{8, 9, 2, 1, 1, 8, 5, 9}, {0, 7, 10, 11, 4, 11, 3, 10}, {5, 4, 3, 6, 6, 0, 2, 7}}},
      {{.samples = 17, .micro_batch_size = 1, .data_ranks = 4, .data_sharding = false},
       {{7, 1, 9, 11, 2, 10, 16, 3},
        {16, 8, 12, 4, 12, 6, 9, 7},
        {10, 2, 3, 15, 11, 0, 14, 15},
        {5, 6, 13, 14, 13, 8, 4, 5}}},
      {{.samples = 10, .micro_batch_size = 2, .data_ranks = 2, .data_sharding = false},
       {{4, 7, 3, 0, 5, 1, 0, 9}, {1, 5, 9, 8, 6, 2, 8, 3}}}};
  for (const MegatronCase& c : cases) {
    CyclicSampler sampler(c.options);
    for (std::int64_t rank = 0; rank < c.options.data_ranks; ++rank)
      EXPECT_EQ(two_epochs(sampler, c.options.micro_batch_size, c.options.data_ranks, rank),
                c.reads[static_cast<std::size_t>(rank)])
          << c.options.samples << " samples, rank " << rank;
  }
}

TEST(CyclicSampler, AnswersAnyThreadInAnyOrder) {
  const CyclicSampler::Options options{.samples = 21, .micro_batch_size = 2, .data_ranks = 2};
  Numbers expected;
  CyclicSampler alone(options);
  for (std::int64_t position = 0; position < 100; ++position) expected.push_back(alone.at(position));
  CyclicSampler shared(options);
  std::vector<Numbers> seen(3, Numbers(100));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < seen.size(); ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 100; ++i) {
        const std::size_t position = t == 1 ? 99 - i : i;
        seen[t][position] = shared.at(static_cast<std::int64_t>(position));
      }
    });
  for (auto& thread : threads) thread.join();
  for (const Numbers& one : seen) EXPECT_EQ(one, expected);
}

TEST(CyclicSampler, RefusesWhatHasNoEpoch) {
  EXPECT_TRUE(
      contains(message_of<UserError>([] { CyclicSampler({.samples = 5, .micro_batch_size = 2, .data_ranks = 3}); }),
               "dataset.dataloader_type=cyclic: the training data has 5 samples, fewer than the 6"));
  const auto endless = [] {
    CyclicSampler({.samples = std::int64_t{1} << 40, .micro_batch_size = 1, .data_ranks = 1});
  };
  EXPECT_TRUE(contains(message_of<UserError>(endless), "more than an order is kept of"));
}

// Sample i is the token i.
class NumberedDataset final : public Dataset {
 public:
  explicit NumberedDataset(std::int64_t samples) : samples_(samples) {}
  std::int64_t samples() const override { return samples_; }
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override {
    std::ranges::fill(tokens, static_cast<std::int32_t>(index));
  }

 private:
  std::int64_t samples_;
};

// All samples that the ranks of one layout read between two positions, rank after rank, through the loaders of a run.
Numbers read_by_all(const BatchSource& source, std::int64_t begin, std::int64_t end, const BatchOptions& options) {
  Numbers read;
  for (std::int64_t rank = 0; rank < options.data_ranks; ++rank) {
    BatchOptions own = options;
    own.data_rank = rank;
    BatchLoader loader(source, own);
    const auto rows = static_cast<std::size_t>(options.micro_batch_size);
    std::vector<std::int32_t> tokens(rows), targets(rows), positions(rows);
    std::vector<std::int64_t> row_ids(rows);
    for (std::int64_t consumed = begin; consumed < end; consumed += options.global_batch_size)
      for (std::int64_t i = 0; i < loader.microbatches(); ++i) {
        loader.fill(consumed, i, {tokens, targets, positions, row_ids});
        for (std::size_t row = 0; row < rows; ++row)
          if (targets[row] >= 0) read.push_back(tokens[row]);
      }
  }
  return read;
}

void expect_each_once(Numbers read, std::int64_t number, const std::string& what) {
  ASSERT_EQ(std::ssize(read), number) << what;
  std::ranges::sort(read);
  EXPECT_EQ(std::ranges::adjacent_find(read), read.end()) << what << ": a sample was read twice";
}

TEST(Samplers, SingleReadsEachSampleOnceInEveryLayout) {
  const NumberedDataset data(1000);
  for (const std::int64_t ranks : {1, 2, 3, 6}) {
    Numbers read = read_by_all({&data}, 0, 120,
                               {.seq_length = 1, .micro_batch_size = 2, .global_batch_size = 12, .data_ranks = ranks});
    std::ranges::sort(read);
    Numbers all(120);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(read, all) << ranks;
  }
  // A run that is resumed in another layout reads the remaining samples, and none twice.
  Numbers read =
      read_by_all({&data}, 0, 60, {.seq_length = 1, .micro_batch_size = 2, .global_batch_size = 12, .data_ranks = 2});
  const Numbers rest =
      read_by_all({&data}, 60, 120, {.seq_length = 1, .micro_batch_size = 4, .global_batch_size = 12, .data_ranks = 3});
  read.insert(read.end(), rest.begin(), rest.end());
  expect_each_once(read, 120, "two layouts");
}

TEST(Samplers, CyclicReadsEachSampleOncePerEpoch) {
  for (const bool sharding : {true, false})
    for (const std::int64_t ranks : {1, 2, 3}) {
      const NumberedDataset data(103);
      CyclicSampler sampler({.samples = 103, .micro_batch_size = 2, .data_ranks = ranks, .data_sharding = sharding});
      const std::int64_t active = sampler.samples_per_epoch();
      EXPECT_EQ(active, 103 / (2 * ranks) * 2 * ranks);
      std::set<Numbers> orders;
      for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
        // One microbatch of each rank a step, so that epochs end with a step.
        const Numbers read =
            read_by_all({&data, &sampler}, epoch * active, (epoch + 1) * active,
                        {.seq_length = 1, .micro_batch_size = 2, .global_batch_size = 2 * ranks, .data_ranks = ranks});
        expect_each_once(read, active, "an epoch");
        orders.insert(read);
      }
      EXPECT_EQ(orders.size(), 4U) << "epochs of the same order";
    }
}

TEST(Samplers, FullValidationReadsEachSampleOnce) {
  for (const std::int64_t ranks : {1, 2, 4}) {
    const OnceDataset data(std::make_unique<NumberedDataset>(37));
    const Numbers read = read_by_all(
        {&data}, 0, 37, {.seq_length = 1, .micro_batch_size = 2, .global_batch_size = 8, .data_ranks = ranks});
    expect_each_once(read, 37, "full validation");
  }
}

}  // namespace
}  // namespace tera::test
