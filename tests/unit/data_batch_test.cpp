#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>

#include "tera/base/error.h"
#include "tera/data/batching/batch_loader.h"
#include "tera/data/dataset_hash.h"
#include "tera/data/permutation.h"
#include "tests/support/count_news.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(BatchLoader, DocumentsOneByOne) {
  // 0 ends documents; -1 is no token.
  class Three final : public Dataset {
   public:
    std::int64_t samples() const override { return 3; }
    bool has_gaps() const override { return true; }
    void sample(std::int64_t index, std::span<std::int32_t> tokens) const override {
      const std::array<Ids, 3> all{
          {{5, 6, 0, 7, 8, 9, 0, 4, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 0}, {9, 0, 8, 7, -1, -1, -1, -1, -1}}};
      std::ranges::copy(all[static_cast<std::size_t>(index)], tokens.begin());
    }
  };
  const Three data;
  const BatchOptions options{.seq_length = 8,
                             .micro_batch_size = 1,
                             .global_batch_size = 3,
                             .eod = 0,
                             .eod_mask_loss = true,
                             .reset_position_ids = true,
                             .reset_attention_mask = true,
                             .mtp_depths = 1};
  BatchLoader loader(data, options);
  std::vector<DocumentSpan> documents;
  const BatchCounts all = loader.measure(0, 3, documents);
  EXPECT_EQ(all.targets, loader.counted_targets(0, 3));
  EXPECT_EQ(all.mtp_targets, loader.count(0, 3).mtp_targets);
  // Each document has rows up to its last target; the first of sample 1 is only an end, and has none.
  const std::vector<std::array<std::int64_t, 3>> wanted{{0, 0, 2}, {0, 3, 3}, {0, 7, 1},
                                                        {1, 1, 7}, {2, 0, 1}, {2, 2, 1}};
  ASSERT_EQ(documents.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_EQ((std::array<std::int64_t, 3>{documents[i].position, documents[i].begin, documents[i].rows}), wanted[i])
        << i;

  Ids tokens(6), targets(6), positions(6), offsets(7), mtp_tokens(6), mtp_targets(6);
  std::vector<std::int64_t> row_ids(6);
  const std::array<std::int32_t, 2> which{1, 5};
  const BatchCounts counts =
      loader.fill(documents, which, {tokens, targets, positions, row_ids, offsets, mtp_tokens, mtp_targets});
  EXPECT_EQ(tokens, (Ids{7, 8, 9, 8, 7, 8}));
  EXPECT_EQ(targets, (Ids{8, 9, 0, 7, -1, -1}));
  EXPECT_EQ(positions, (Ids{0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(row_ids, (std::vector<std::int64_t>{3, 4, 5, 18, 0, 0}));
  EXPECT_EQ(mtp_tokens, (Ids{8, 9, 0, 0, 0, 0}));
  EXPECT_EQ(mtp_targets, (Ids{9, 0, -1, -1, -1, -1}));
  EXPECT_EQ(counts.targets, 4);
  EXPECT_EQ(counts.mtp_targets[0], 2);
  EXPECT_EQ(counts.documents, 4) << "three, and an empty one";
  EXPECT_EQ(Ids(offsets.begin(), offsets.begin() + 5), (Ids{0, 3, 4, 6, 6}));
  const std::array<std::int32_t, 1> long_one{3};
  EXPECT_THROW(
      loader.fill(documents, long_one, {tokens, targets, positions, row_ids, offsets, mtp_tokens, mtp_targets}), Error);
}

TEST(Permutation, IsABijectionForEverySize) {
  for (const std::int64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000}) {
    const Permutation order(rng_stream(1, "x"), n);
    for (const std::int64_t pass : {0, 1, 77}) {
      std::vector<std::int64_t> image;
      for (std::int64_t i = 0; i < n; ++i) image.push_back(order.at(i, pass));
      std::ranges::sort(image);
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(image[static_cast<std::size_t>(i)], i) << n;
    }
  }
  EXPECT_THROW(Permutation(RngKey{1}, 0), Error);
  EXPECT_THROW(Permutation(RngKey{1}, 5).at(5, 0), Error);
}

// Over many passes each of 6 things must come first about equally often, and each ordered pair of neighbours too.
TEST(Permutation, FavoursNoOrder) {
  const Permutation order(rng_stream(3, "order"), 6);
  constexpr int passes = 60000;
  std::array<int, 6> first{};
  std::array<std::array<int, 6>, 6> pair{};
  for (int pass = 0; pass < passes; ++pass) {
    const auto a = static_cast<std::size_t>(order.at(0, pass)), b = static_cast<std::size_t>(order.at(1, pass));
    ++first[a];
    ++pair[a][b];
  }
  double chi_first = 0, chi_pair = 0;
  for (std::size_t a = 0; a < 6; ++a) {
    chi_first += (first[a] - 10000.0) * (first[a] - 10000.0) / 10000.0;
    for (std::size_t b = 0; b < 6; ++b)
      if (a != b) chi_pair += (pair[a][b] - 2000.0) * (pair[a][b] - 2000.0) / 2000.0;
  }
  EXPECT_LT(chi_first, 20.5);  // 5 degrees of freedom, p = 0.001
  EXPECT_LT(chi_pair, 58.3);   // 29 degrees of freedom, p = 0.001
}

TEST(MockDataset, IsAPureFunctionOfSeedAndIndex) {
  const MockDataset data(1000, 7), again(1000, 7), other(1000, 8);
  Ids a(65), b(65), c(65), d(65);
  again.sample(12, b);  // another order of reading
  data.sample(3, a), data.sample(12, c), other.sample(12, d);
  EXPECT_EQ(b, c);
  EXPECT_NE(a, c);
  EXPECT_NE(c, d);
  Ids start(10);
  data.sample(12, start);  // a shorter sequence is the beginning of a longer one
  EXPECT_TRUE(std::equal(start.begin(), start.end(), c.begin()));
  EXPECT_THROW(MockDataset(0, 1), UserError);
}

TEST(MockDataset, HasSomethingToLearnAndUsesTheWholeVocabulary) {
  const std::int64_t vocab = 50;
  const MockDataset data(vocab, 1);
  std::map<std::int32_t, int> counts;
  std::map<std::pair<std::int32_t, std::int32_t>, int> pairs;
  Ids ids(101);
  for (std::int64_t i = 0; i < 200; ++i) {
    data.sample(i, ids);
    for (std::size_t t = 0; t < 100; ++t) ++counts[ids[t]], ++pairs[{ids[t], ids[t + 1]}];
  }
  EXPECT_EQ(counts.begin()->first, 0);
  EXPECT_EQ(counts.rbegin()->first, vocab - 1);
  EXPECT_EQ(counts.size(), static_cast<std::size_t>(vocab));
  for (const auto& [id, n] : counts) {  // about half of an id's successors are one and the same
    int best = 0;
    for (std::int32_t next = 0; next < vocab; ++next)
      if (const auto it = pairs.find({id, next}); it != pairs.end()) best = std::max(best, it->second);
    if (n < 100) continue;
    EXPECT_NEAR(static_cast<double>(best) / n, 0.6, 0.2) << "after " << id;
  }
  // Another split has other samples that follow the same rules.
  const MockDataset valid(vocab, 1, 1);
  Ids other(101);
  valid.sample(0, other);
  data.sample(0, ids);
  EXPECT_NE(ids, other);
  int followed = 0;
  for (std::size_t t = 0; t < 100; ++t) followed += pairs[{other[t], other[t + 1]}] > 0.4 * counts[other[t]] ? 1 : 0;
  EXPECT_NEAR(followed, 55, 20);

  Ids tiny(9, -1);
  MockDataset(1, 1).sample(0, tiny);
  EXPECT_EQ(tiny, Ids(9, 0));
}

// Sample i is 100 i, 100 i + 1, ...: what a batch holds can be read off.
class CountingDataset : public Dataset {
 public:
  std::int64_t samples() const override { return 1000; }
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override {
    for (std::size_t t = 0; t < tokens.size(); ++t)
      tokens[t] = static_cast<std::int32_t>(100 * index) + static_cast<std::int32_t>(t);
  }
};

class FixedDataset : public Dataset {
 public:
  explicit FixedDataset(Ids ids) : ids_(std::move(ids)) {}
  std::int64_t samples() const override { return 1; }
  void sample(std::int64_t, std::span<std::int32_t> tokens) const override { std::ranges::copy(ids_, tokens.begin()); }
  bool has_gaps() const override { return true; }

 private:
  Ids ids_;
};

struct Batch {
  explicit Batch(std::size_t rows) : tokens(rows), targets(rows), positions(rows), row_ids(rows) {}
  BatchSpans spans() { return {tokens, targets, positions, row_ids}; }
  Ids tokens, targets, positions;
  std::vector<std::int64_t> row_ids;
};

TEST(BatchLoader, LaysOutRowsByConsumedSamples) {
  const CountingDataset data;
  BatchLoader loader(data, {.seq_length = 3, .micro_batch_size = 2, .global_batch_size = 4});
  EXPECT_EQ(loader.microbatches(), 2);
  Batch batch(6);
  loader.fill(8, 1, batch.spans());
  EXPECT_EQ(batch.tokens, (Ids{1000, 1001, 1002, 1100, 1101, 1102}));
  EXPECT_EQ(batch.targets, (Ids{1001, 1002, 1003, 1101, 1102, 1103}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(batch.row_ids, (std::vector<std::int64_t>{30, 31, 32, 33, 34, 35}));
  EXPECT_EQ(loader.counted_targets(8), 12);
}

TEST(BatchLoader, RanksShareTheGlobalBatchWithoutOverlap) {
  const CountingDataset data;
  Ids seen;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    BatchLoader loader(
        data, {.seq_length = 1, .micro_batch_size = 2, .global_batch_size = 12, .data_rank = rank, .data_ranks = 3});
    ASSERT_EQ(loader.microbatches(), 2);
    for (std::int64_t i = 0; i < 2; ++i) {
      Batch batch(2);
      loader.fill(24, i, batch.spans());
      EXPECT_EQ(batch.tokens[0], 100 * (24 + i * 6 + rank * 2));
      seen.insert(seen.end(), batch.tokens.begin(), batch.tokens.end());
    }
  }
  std::ranges::sort(seen);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(seen[i], static_cast<std::int32_t>(2400 + 100 * i));
}

TEST(BatchLoader, MasksWhatDoesNotCount) {
  const FixedDataset data({5, 9, 6, 1, 1, 7, -1});  // 9 is eod, 1 is padding, -1 the end of the data
  BatchOptions options{.seq_length = 6, .micro_batch_size = 1, .global_batch_size = 2, .eod = 9, .pad = 1};
  Batch batch(6);
  BatchLoader plain(data, options);
  plain.fill(0, 0, batch.spans());
  EXPECT_EQ(batch.tokens, (Ids{5, 9, 6, 1, 1, 7}));
  EXPECT_EQ(batch.targets, (Ids{9, 6, -1, -1, 7, -1}));
  EXPECT_EQ(plain.counted_targets(0), 6);

  options.eod_mask_loss = options.reset_position_ids = true;
  BatchLoader masked(data, options);
  masked.fill(0, 1, batch.spans());
  EXPECT_EQ(batch.targets, (Ids{9, -1, -1, -1, 7, -1}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 0, 1, 2, 3}));
  EXPECT_EQ(masked.counted_targets(0), 4);

  const FixedDataset ended({5, -1, -1, -1, -1, -1, -1});
  BatchLoader rest(ended, options);
  rest.fill(0, 0, batch.spans());
  EXPECT_EQ(batch.tokens, (Ids{5, 0, 0, 0, 0, 0}));  // an embedding can look them up
  EXPECT_EQ(batch.targets, Ids(6, -1));
  EXPECT_EQ(rest.counted_targets(0), 0);
}

TEST(BatchLoader, SaysWhereDocumentsBegin) {
  const FixedDataset data({5, 9, 6, 9, 9, 7, 9});  // 9 ends a document, and belongs to it
  BatchLoader loader(data, {.seq_length = 6,
                            .micro_batch_size = 2,
                            .global_batch_size = 2,
                            .eod = 9,
                            .reset_position_ids = true,
                            .reset_attention_mask = true});
  Batch batch(12);
  Ids offsets(13);
  BatchSpans spans = batch.spans();
  spans.offsets = offsets;
  const BatchCounts counts = loader.fill(0, 0, spans);
  EXPECT_EQ(counts.targets, 12);
  EXPECT_EQ(counts.documents, 8);
  EXPECT_EQ(Ids(offsets.begin(), offsets.begin() + 9), (Ids{0, 2, 4, 5, 6, 8, 10, 11, 12}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0}));

  // The number of documents is rounded up to a power of two, or to the number of rows, with empty ones.
  const FixedDataset three({5, 9, 6, 9, 5, 5, 5});
  BatchLoader rounded(
      three, {.seq_length = 6, .micro_batch_size = 1, .global_batch_size = 1, .eod = 9, .reset_attention_mask = true});
  Batch small(6);
  spans = small.spans();
  spans.offsets = std::span(offsets).first(7);
  EXPECT_EQ(rounded.fill(0, 0, spans).documents, 4);
  EXPECT_EQ(Ids(offsets.begin(), offsets.begin() + 5), (Ids{0, 2, 4, 6, 6}));
  EXPECT_EQ(small.positions, (Ids{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(document_counts(6), (std::vector<std::int64_t>{1, 2, 4, 6}));
  EXPECT_EQ(document_counts(8), (std::vector<std::int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(document_counts(1), (std::vector<std::int64_t>{1}));
  EXPECT_THROW(rounded.fill(0, 0, small.spans()), Error);
}

// Rows for multi-token prediction (MTP): each row's token and target at depth k, up to the end of the sequence or the
// document.
TEST(BatchLoader, MtpRows) {
  const FixedDataset data({5, 9, 6, 7, 1, 4, 3});  // 9 is eod, 1 is padding
  BatchOptions options{
      .seq_length = 6, .micro_batch_size = 2, .global_batch_size = 2, .eod = 9, .pad = 1, .mtp_depths = 2};
  const auto load_mtp = [](BatchLoader& loader, Batch& batch, Ids& tokens, Ids& targets) {
    Ids offsets(13);
    BatchSpans spans = batch.spans();
    spans.offsets = offsets;
    spans.mtp_tokens = tokens;
    spans.mtp_targets = targets;
    return loader.fill(0, 0, spans);
  };
  const auto twice = [](const Ids& one, const Ids& two) {  // both sequences at each depth
    Ids all;
    for (const Ids& ids : {one, one, two, two}) all.insert(all.end(), ids.begin(), ids.end());
    return all;
  };
  Batch batch(12);
  Ids tokens(24), targets(24);
  BatchLoader plain(data, options);
  const BatchCounts counts = load_mtp(plain, batch, tokens, targets);
  EXPECT_EQ(Ids(batch.targets.begin(), batch.targets.begin() + 6), (Ids{9, 6, 7, -1, 4, 3}));
  EXPECT_EQ(tokens, twice({9, 6, 7, 1, 4, 0}, {6, 7, 1, 4, 0, 0}));
  EXPECT_EQ(targets, twice({6, 7, -1, 4, 3, -1}, {7, -1, 4, 3, -1, -1}));
  EXPECT_EQ(counts.targets, 10);
  EXPECT_EQ(counts.mtp_targets[0], 8);
  EXPECT_EQ(counts.mtp_targets[1], 6);
  EXPECT_EQ(plain.count(0, 2).mtp_targets, counts.mtp_targets);

  options.reset_attention_mask = true;  // documents 5 9 and 6 7 1 4
  BatchLoader packed(data, options);
  const BatchCounts in_documents = load_mtp(packed, batch, tokens, targets);
  EXPECT_EQ(tokens, twice({9, 0, 7, 1, 4, 0}, {0, 0, 1, 4, 0, 0}));
  EXPECT_EQ(targets, twice({6, -1, -1, 4, 3, -1}, {-1, -1, 4, 3, -1, -1}));
  EXPECT_EQ(in_documents.mtp_targets[0], 6);
  EXPECT_EQ(in_documents.mtp_targets[1], 4);
  EXPECT_EQ(packed.count(0, 2).mtp_targets, in_documents.mtp_targets);
  EXPECT_EQ(packed.count(0, 2).targets, in_documents.targets);

  const CountingDataset whole;  // counted without a look at it
  BatchLoader counting(whole, {.seq_length = 2, .micro_batch_size = 1, .global_batch_size = 5, .mtp_depths = 3});
  EXPECT_EQ(counting.count(0, 5).mtp_targets[0], 5);
  EXPECT_EQ(counting.count(0, 5).mtp_targets[1], 0);
  EXPECT_EQ(counting.count(0, 5).mtp_targets[2], 0);
  Batch small(2);
  EXPECT_THROW(counting.fill(0, 0, small.spans()), Error);
}

TEST(BatchLoader, FillingAllocatesNothing) {
  const MockDataset data(512, 1);
  BatchLoader loader(
      data, {.seq_length = 16, .micro_batch_size = 2, .global_batch_size = 4, .eod = 3, .eod_mask_loss = true});
  Batch batch(32);
  EXPECT_EQ(news_during([&] {
              for (std::int64_t i = 0; i < 2; ++i) loader.fill(40, i, batch.spans());
              loader.counted_targets(40);
            }),
            0);
}

TEST(BatchLoader, RefusesWhatDoesNotFit) {
  const CountingDataset data;
  EXPECT_THROW(BatchLoader(data, {.seq_length = 3, .micro_batch_size = 2, .global_batch_size = 5}), Error);
  BatchLoader loader(data, {.seq_length = 3, .micro_batch_size = 2, .global_batch_size = 4});
  Batch small(5), right(6);
  EXPECT_THROW(loader.fill(0, 0, small.spans()), Error);
  EXPECT_THROW(loader.fill(0, 2, right.spans()), Error);
  EXPECT_THROW(loader.fill(-1, 0, right.spans()), Error);
}

TEST(DatasetHash, DistinguishesData) {
  class Numbers final : public Dataset {  // ids and marks of every sample, but for those of the one that is changed
   public:
    Numbers(std::int64_t samples, std::int32_t id, std::uint8_t mark, std::int64_t changed = 0)
        : samples_(samples), id_(id), mark_(mark), changed_(changed) {}
    std::int64_t samples() const override { return samples_; }
    void sample(std::int64_t index, std::span<std::int32_t> tokens) const override {
      std::ranges::fill(tokens, static_cast<std::int32_t>(index));
      if (index == changed_) tokens.back() = id_;
    }
    bool has_marks() const override { return true; }
    void marks(std::int64_t index, std::span<std::uint8_t> marks) const override {
      std::ranges::fill(marks, counts);
      if (index == changed_) marks.back() = mark_;
    }

   private:
    std::int64_t samples_;
    std::int32_t id_;
    std::uint8_t mark_;
    std::int64_t changed_;
  };
  const auto hash = [](const Dataset& data) { return hash_some_samples(data, 9); };
  EXPECT_EQ(hash(Numbers(100, 7, 1)), hash(Numbers(100, 7, 1)));
  EXPECT_NE(hash(Numbers(100, 7, 1)), hash(Numbers(101, 7, 1)));
  EXPECT_NE(hash(Numbers(100, 7, 1)), hash(Numbers(100, 8, 1)));
  EXPECT_NE(hash(Numbers(100, 7, 1)), hash(Numbers(100, 7, 3)));
  EXPECT_NE(hash(Numbers(1600, 7, 1, 1500)), hash(Numbers(1600, 8, 1, 1500)));
  EXPECT_NE(hash(Numbers(3, 7, 1, 2)), hash(Numbers(3, 8, 1, 2)));
  EXPECT_NE(hash(MockDataset(100, 1)), hash(MockDataset(100, 2)));
}

}  // namespace
}  // namespace tera::test
