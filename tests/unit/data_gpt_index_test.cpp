// The sample order against numbers made by numpy with Megatron-LM's rules; the same script gave the checksums that
// Megatron-LM's own arrays have for its mock data.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tera/base/error.h"
#include "tera/data/gpt_index.h"
#include "tera/data/numpy_random.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

template <class T>
using List = std::vector<T>;

List<std::int64_t> shuffled(std::uint32_t seed, std::size_t n, int times = 1) {
  List<std::int64_t> values(n);
  std::iota(values.begin(), values.end(), 0);
  NumpyRandom random(seed);
  for (int i = 0; i < times; ++i) random.shuffle(std::span(values));
  return values;
}

// FNV-1a over numbers instead of bytes.
template <class Range>
std::uint64_t checksum(const Range& values) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const auto value : values) hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001b3ULL;
  return hash;
}

TEST(NumpyRandom, ShufflesAsNumpyDoes) {
  EXPECT_EQ(shuffled(0, 10), (List<std::int64_t>{2, 8, 4, 9, 1, 6, 7, 3, 0, 5}));
  EXPECT_EQ(shuffled(42, 10), (List<std::int64_t>{8, 1, 5, 0, 7, 2, 9, 4, 3, 6}));
  EXPECT_EQ(shuffled(1234, 20),
            (List<std::int64_t>{3, 13, 2, 16, 14, 5, 4, 0, 8, 18, 17, 11, 10, 9, 7, 1, 19, 12, 6, 15}));
  EXPECT_EQ(shuffled(4294967295, 8), (List<std::int64_t>{1, 7, 6, 0, 5, 4, 2, 3}));
  EXPECT_EQ(checksum(shuffled(7, 100000, 2)), 2664419788059884849U);
  EXPECT_EQ(shuffled(7, 0).size() + shuffled(7, 1).size(), 1u);
}

TEST(NumpyRandom, BoundsBeyondOneWordTakeTwo) {
  NumpyRandom one(5), two(5);
  const std::uint64_t high = one.bounded(0xffffffffU), low = one.bounded(0xffffffffU);
  EXPECT_EQ(two.bounded(~std::uint64_t{0}), high << 32 | low);
}

struct Expected {
  std::optional<std::int64_t> samples;
  List<std::int32_t> documents;
  List<std::pair<std::int64_t, std::int32_t>> starts;
  List<std::uint32_t> order;
};

TEST(GptIndex, EqualsMegatronOnSixDocuments) {
  const List<std::int32_t> lengths{5, 3, 7, 2, 9, 4};
  const List<std::pair<std::int64_t, std::int32_t>> once{{0, 0}, {0, 4}, {1, 1}, {2, 2},
                                                         {3, 2}, {4, 1}, {4, 5}, {5, 0}};
  List<std::pair<std::int64_t, std::int32_t>> twice = once;
  for (const auto& more : {std::pair{6, 2}, {7, 1}, {7, 5}, {8, 0}, {9, 2}, {9, 6}, {10, 3}}) twice.push_back(more);
  const List<Expected> cases{
      {{}, {2, 1, 5, 0, 4, 3}, once, {5, 0, 3, 4, 2, 6, 1}},
      {6, {2, 1, 5, 0, 4, 3}, once, {5, 0, 3, 4, 2, 6, 1}},
      {10, {2, 1, 5, 0, 4, 3, 0, 4, 3, 2, 5, 1}, twice, {1, 0, 3, 2, 5, 4, 6, 9, 10, 12, 8, 11, 13, 7}},
      {14,
       {1, 2, 5, 2, 3, 4, 1, 0, 4, 5, 0, 3},
       {{0, 0},
        {1, 1},
        {1, 5},
        {2, 2},
        {3, 2},
        {3, 6},
        {5, 1},
        {5, 5},
        {6, 0},
        {7, 1},
        {8, 0},
        {8, 4},
        {8, 8},
        {9, 3},
        {10, 3}},
       {7, 11, 2, 3, 1, 9, 5, 4, 0, 8, 6, 10, 13, 12}}};
  for (const Expected& c : cases) {
    const auto index = build_gpt_index(PackedArray<std::int32_t>(std::as_bytes(std::span(lengths))),
                                       {.last = 6, .samples = c.samples, .seq_length = 4, .seed = 1234});
    EXPECT_EQ(index.documents, c.documents);
    EXPECT_EQ(index.order, c.order);
    List<std::pair<std::int64_t, std::int32_t>> starts;
    for (std::size_t i = 0; i < index.position.size(); ++i) starts.emplace_back(index.position[i], index.offset[i]);
    EXPECT_EQ(starts, c.starts);
  }
}

List<std::int32_t> made_up_lengths(std::size_t count, std::uint32_t below, std::uint32_t seed) {
  List<std::int32_t> lengths(count);
  for (std::int32_t& length : lengths) {
    seed = seed * 1664525U + 1013904223U;
    length = static_cast<std::int32_t>((seed >> 16) % below);
  }
  return lengths;
}

struct Setting {
  std::size_t count;    // documents
  std::uint32_t below;  // lengths are; some are 0
  std::int64_t first, last;
  std::optional<std::int64_t> requested;
  std::int64_t seq_length;
  std::uint32_t seed;
  bool extra, drop;
  std::int64_t epochs;
  bool apart;
  std::int64_t samples;
  std::uint64_t documents, starts, order;  // checksums
};

TEST(GptIndex, EqualsNumpyInEightSettings) {
  const List<Setting> settings{
      {5000,
       300,
       0,
       5000,
       {},
       128,
       1234,
       true,
       true,
       1,
       false,
       5841,
       0xe12aebd17711f5b5,
       0xacbfb98c01d886b5,
       0x5e93d72e265754df},
      {5000, 300, 0, 4845, 20000, 128, 1234, true, true, 4, true, 22678, 0xe114a0a3e5dfbcd9, 0xc39e15406bd1426f,
       0x6a34c0d7b75ff2ce},
      {5000, 300, 4845, 4995, 700, 64, 7, true, true, 2, false, 734, 0x93e1c045582fa14d, 0x68d5d1d4e4154cf8,
       0xb01eeddcd2a0776a},
      {300, 9, 0, 300, 1000, 16, 0, true, true, 14, true, 1041, 0xeb0838d00f2c4c81, 0x21eb69db2e96042f,
       0x9a4475278119674b},
      {300, 9, 0, 300, 75, 16, 4294967295, true, true, 2, true, 142, 0x0219f675d895ba49, 0x2f884bda5e97c368,
       0xc79be4f09df2496c},
      {2000, 50, 100, 1900, 3000, 31, 99, false, true, 3, true, 4078, 0xdb9a288d430f9d3f, 0x99d0091babeae258,
       0x789e6271411d7026},
      {2000,
       50,
       0,
       2000,
       {},
       100,
       5,
       true,
       false,
       1,
       false,
       490,
       0xfb0204093f85065f,
       0x2a416f4d2a478d4f,
       0xa1caa831fb2def38},
      {70, 40, 10, 60, 4000, 8, 42, true, true, 30, true, 4057, 0xd9e0becff4fd3add, 0xc35001416890aa56,
       0xe2b0141d737ab2e3},
  };
  for (const Setting& s : settings) {
    const auto lengths = made_up_lengths(s.count, s.below, s.seed < 1000 ? s.seed : 3);
    const PackedArray<std::int32_t> packed(std::as_bytes(std::span(lengths)));
    const GptIndexOptions options{.first = s.first,
                                  .last = s.last,
                                  .samples = s.requested,
                                  .seq_length = s.seq_length,
                                  .seed = s.seed,
                                  .add_extra_token = s.extra,
                                  .drop_last_partial = s.drop};
    const GptEpochs epochs = count_epochs(packed, options);
    EXPECT_EQ(epochs.epochs, s.epochs);
    EXPECT_EQ(epochs.last_apart, s.apart);
    EXPECT_EQ(epochs.samples, s.samples);
    const GptIndexArrays index = build_gpt_index(packed, options);
    List<std::int64_t> starts;
    for (std::size_t i = 0; i < index.position.size(); ++i)
      starts.insert(starts.end(), {index.position[i], std::int64_t{index.offset[i]}});
    EXPECT_EQ(checksum(index.documents), s.documents) << s.count << " " << s.seed;
    EXPECT_EQ(checksum(starts), s.starts) << s.count << " " << s.seed;
    EXPECT_EQ(checksum(index.order), s.order) << s.count << " " << s.seed;
  }
}

TEST(GptIndex, RefusesWhatWouldNeverEndOrNotFit) {
  const List<std::int32_t> lengths{0, 0, 5};
  const PackedArray<std::int32_t> packed(std::as_bytes(std::span(lengths)));
  GptIndexOptions options{.last = 2, .samples = 1, .seq_length = 4, .what = "the test split of x"};
  EXPECT_TRUE(contains(message_of<UserError>([&] { build_gpt_index(packed, options); }),
                       "the test split of x has no tokens (2 documents), and 1 samples are asked"));
  options.samples = {};
  EXPECT_EQ(build_gpt_index(packed, options).order.size(), 0u);
  options.last = 0;
  EXPECT_EQ(build_gpt_index(packed, options).documents.size(), 0u);
  options.last = 3;
  for (const std::int64_t huge : {std::int64_t{1} << 32, std::int64_t{1} << 62}) {
    options.samples = huge;
    EXPECT_TRUE(contains(message_of<UserError>([&] { build_gpt_index(packed, options); }), "can be numbered"));
  }
}

}  // namespace
}  // namespace tera::test
