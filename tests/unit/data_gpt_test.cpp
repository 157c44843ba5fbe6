#include <gtest/gtest.h>

#include <algorithm>

#include "tera/base/error.h"
#include "tera/data/gpt_dataset.h"
#include "tera/data/indexed/indexed_writer.h"
#include "tests/support/count_news.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using Ids = std::vector<std::int32_t>;

// Every token of the data is different: its number.
std::shared_ptr<const IndexedDataset> write_documents(const TempFolder& folder, const Ids& lengths,
                                                      TokenType type = TokenType::u16) {
  const std::string prefix = (folder / "d").string();
  IndexedWriter writer(prefix, type);
  std::int32_t next = 0;
  for (const std::int32_t length : lengths) {
    Ids document(static_cast<std::size_t>(length));
    for (std::int32_t& id : document) id = next++;
    writer.add_document(document);
  }
  writer.finish();
  return std::make_shared<const IndexedDataset>(prefix);
}

Ids made_up_lengths(std::size_t count) {
  Ids lengths(count);
  for (std::size_t i = 0; i < count; ++i) lengths[i] = static_cast<std::int32_t>((i * i * 7 + 3 * i) % 23);  // some 0
  return lengths;
}

// All documents in their order as one stream of tokens.
Ids stream_of(const IndexedDataset& data, const Ids& documents) {
  Ids stream;
  for (const std::int32_t document : documents) {
    Ids ids(static_cast<std::size_t>(data.lengths()[static_cast<std::size_t>(document)]));
    data.read(document, 0, 1 << 20, ids);
    stream.insert(stream.end(), ids.begin(), ids.end());
  }
  return stream;
}

TEST(GptDataset, SamplesAreSlicesOfTheStream) {
  const TempFolder folder;
  const auto data = write_documents(folder, made_up_lengths(60));
  for (const bool extra : {true, false})
    for (const bool drop : {true, false})
      for (const std::int64_t seq_length : {1, 3, 16, 50, 400}) {
        const GptIndexOptions options{.first = 5,
                                      .last = 55,
                                      .samples = 40,
                                      .seq_length = seq_length,
                                      .seed = 3,
                                      .add_extra_token = extra,
                                      .drop_last_partial = drop};
        const GptDataset dataset(data, {.index = options, .vocab_size = 1000, .cache_path = {}});
        const GptIndexArrays index = build_gpt_index(data->lengths(), options);
        Ids stream = stream_of(*data, index.documents);
        const auto usable = std::ssize(stream) - (extra ? 1 : 0);
        ASSERT_EQ(dataset.samples(), drop ? usable / seq_length : (usable + seq_length - 1) / seq_length);
        ASSERT_GE(dataset.samples(), 40);
        EXPECT_EQ(dataset.has_gaps(), !extra || !drop);
        stream.resize(stream.size() + static_cast<std::size_t>(seq_length) + 1, -1);
        Ids sample(static_cast<std::size_t>(seq_length) + 1);
        for (std::int64_t i = 0; i < dataset.samples(); ++i) {
          dataset.sample(i, sample);
          const auto from = stream.begin() + seq_length * index.order[static_cast<std::size_t>(i)];
          Ids expected(from, from + seq_length + 1);
          if (!extra) expected.at(expected.size() - 1) = -1;
          ASSERT_EQ(sample, expected) << "sample " << i << " of length " << seq_length;
        }
        Ids again(sample.size());
        dataset.sample(2 * dataset.samples() - 1, again);  // past the end it starts over
        EXPECT_EQ(again, sample);
      }
}

TEST(GptDataset, ReadingAllocatesNothing) {
  const TempFolder folder;
  const GptDataset dataset(write_documents(folder, made_up_lengths(60)),
                           {.index = {.last = 60, .seq_length = 30}, .vocab_size = 1000, .cache_path = {}});
  Ids sample(31);
  EXPECT_EQ(news_during([&] {
              for (std::int64_t i = 0; i < dataset.samples(); ++i) dataset.sample(i, sample);
            }),
            0);
}

TEST(GptDataset, RefusesIdsOutsideTheVocabularyAndFloats) {
  const TempFolder folder;
  const GptDataset::Options options{.index = {.last = 3, .seq_length = 8}, .vocab_size = 8, .cache_path = {}};
  const GptDataset dataset(write_documents(folder, {5, 5, 5}), options);
  Ids sample(9);
  EXPECT_TRUE(contains(message_of<UserError>([&] { dataset.sample(0, sample); }), "outside the vocabulary of 8"));
  EXPECT_THROW(dataset.sample(0, std::span(sample).first(8)), Error);
  EXPECT_TRUE(contains(message_of<UserError>([&] {
                         GptDataset floats(write_documents(folder, {5, 5, 5}, TokenType::f32), options);
                       }),
                       "d.idx: dtype: float32"));
}

// What is in the one file of a folder.
struct CacheFile {
  explicit CacheFile(const std::filesystem::path& folder)
      : path(std::filesystem::directory_iterator(folder)->path()), bytes(slurp(path)) {}
  void write(const std::string& content) const { std::ofstream(path, std::ios::binary) << content; }
  std::filesystem::path path;
  std::string bytes;
};

bool equal(const GptIndexView& a, const GptIndexView& b) {
  return std::ranges::equal(a.documents, b.documents) && std::ranges::equal(a.order, b.order) &&
         std::ranges::equal(a.starts.position, b.starts.position) &&
         std::ranges::equal(a.starts.offset, b.starts.offset);
}

TEST(IndexCache, GivesBackWhatWasBuiltAndMendsWhatIsBroken) {
  const TempFolder folder;
  const Ids lengths = made_up_lengths(60);
  const PackedArray<std::int32_t> packed(std::as_bytes(std::span(lengths)));
  const GptIndexOptions options{.last = 60, .samples = 100, .seq_length = 8, .seed = 1};
  const GptIndexArrays right = build_gpt_index(packed, options);
  const auto cached = [&] { return make_gpt_index(packed, options, folder / "cache/below"); };
  EXPECT_FALSE(make_gpt_index(packed, options, {}).mapped());
  EXPECT_TRUE(equal(cached().view(), right.view()));
  const CacheFile file(folder / "cache/below");
  const auto written = std::filesystem::last_write_time(file.path);
  const StoredGptIndex stored = cached();
  EXPECT_TRUE(stored.mapped() && equal(stored.view(), right.view()));
  EXPECT_EQ(std::filesystem::last_write_time(file.path), written);  // it was read, not made again

  std::vector<std::string> broken{"", file.bytes.substr(0, 40), file.bytes.substr(0, file.bytes.size() - 1),
                                  file.bytes + "x", std::string(file.bytes.size(), '\xff')};
  for (const std::size_t at :
       {std::size_t{3}, std::size_t{9}, std::size_t{40}, std::size_t{600}, file.bytes.size() - 1}) {
    broken.push_back(file.bytes);
    broken.back()[at] ^= 1;
  }
  for (const std::string& content : broken) {
    file.write(content);
    EXPECT_TRUE(equal(cached().view(), right.view()));
    EXPECT_EQ(slurp(file.path), file.bytes);
  }
  EXPECT_EQ(folder.files(), 1u);
}

TEST(IndexCache, ItsKeyHoldsEveryOptionAndTheLengths) {
  const TempFolder folder;
  Ids lengths = made_up_lengths(60);
  const PackedArray<std::int32_t> packed(std::as_bytes(std::span(lengths)));
  const GptIndexOptions base{.last = 60, .samples = 100, .seq_length = 8, .seed = 1};
  std::vector<GptIndexOptions> others(7, base);
  others[0].first = 1, others[1].last = 59, others[2].samples = 101, others[3].seq_length = 9, others[4].seed = 2;
  others[5].add_extra_token = false, others[6].drop_last_partial = false;
  std::size_t files = 0;
  const auto check = [&](const GptIndexOptions& options) {
    const GptIndexArrays right = build_gpt_index(packed, options);
    EXPECT_TRUE(equal(make_gpt_index(packed, options, folder.path()).view(), right.view()));
    EXPECT_EQ(folder.files(), ++files);
  };
  check(base);
  for (const GptIndexOptions& options : others) check(options);
  GptIndexOptions one_epoch = base;
  one_epoch.samples = {};
  check(one_epoch);
  std::swap(lengths[3], lengths[4]);
  check(base);
}

}  // namespace
}  // namespace tera::test
