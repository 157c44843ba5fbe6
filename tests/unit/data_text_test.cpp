#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tera/base/error.h"
#include "tera/data/preprocess/text_files.h"
#include "tera/data/text_dataset.h"
#include "tera/tokenizer/plain_tokenizers.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(ByteTokenizer, RoundTripsTextAndMarksTheRest) {
  const ByteTokenizer tokenizer;
  Ids ids{7};
  tokenizer.encode("a\u00e9\n", ids);
  EXPECT_EQ(ids, (Ids{7, 'a', 0xc3, 0xa9, '\n'}));
  EXPECT_EQ(tokenizer.decode(std::span(ids).subspan(1)), "a\u00e9\n");
  EXPECT_EQ(tokenizer.decode(Ids{'x', 0, 1, 'y'}), "xy");
  EXPECT_EQ(tokenizer.decode(Ids{'x', 256, 511, -1, 0xc3}), "x\ufffd\ufffd\ufffd\ufffd");
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  EXPECT_TRUE(contains(message_of<UserError>([&] { tokenizer.encode(std::string("ab\0", 3), ids); }), "byte 2"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { tokenizer.encode("\x01", ids); }), "padding"));
}

TEST(NullTokenizer, ReadsNumbers) {
  const NullTokenizer tokenizer(100);
  Ids ids;
  tokenizer.encode(" 1 99\n7\t", ids);
  EXPECT_EQ(ids, (Ids{1, 99, 7}));
  EXPECT_EQ(tokenizer.decode(ids), "1 99 7");
  EXPECT_EQ(tokenizer.eod(), 99);
  for (const char* bad : {"100", "-1", "x", "1x", "99999999999999999999", "1.5"})
    EXPECT_TRUE(contains(message_of<UserError>([&] { tokenizer.encode(bad, ids); }), bad)) << bad;
  EXPECT_THROW(NullTokenizer(0), UserError);
}

TEST(TextFiles, ExpandsFoldersAndPatternsSorted) {
  const TempFolder folder;
  for (const char* name : {"b/z.txt", "b/a.md", "b/c/d.txt", "b/.hidden", "b/.git/x", "a.txt", "B.txt", "[x].txt"})
    folder.write(name, "text");
  const auto find = [&](std::vector<std::string> names) {
    for (std::string& name : names) name = (folder / name).string();
    std::vector<std::string> found;
    for (const auto& path : find_text_files(names)) found.push_back(path.lexically_relative(folder.path()).string());
    return found;
  };
  EXPECT_EQ(find({"b", "a.txt"}), (std::vector<std::string>{"b/a.md", "b/c/d.txt", "b/z.txt", "a.txt"}));
  EXPECT_EQ(find({"*.txt"}), (std::vector<std::string>{"B.txt", "[x].txt", "a.txt"}));
  EXPECT_EQ(find({"[x].txt"}), (std::vector<std::string>{"[x].txt"}));  // a file of that name goes before a pattern
  EXPECT_TRUE(contains(message_of<UserError>([&] { find({"*.none"}); }), "*.none"));
  std::filesystem::create_directory(folder / "empty");
  EXPECT_TRUE(contains(message_of<UserError>([&] { find({"empty"}); }), "no files"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { find({}); }), "dataset.data_path"));
}

TEST(TextFiles, BadTextNamesFileLineAndByte) {
  const TempFolder folder;
  EXPECT_EQ(read_text_file(folder.write("good", "h\u00e9")), "h\u00e9");
  const std::string message = message_of<UserError>([&] {
    read_text_file(folder.write("bad",
                                "one\ntwo\nth\xfe"
                                "ree"));
  });
  EXPECT_EQ(message, (folder / "bad").string() + ":3: the line is not UTF-8: byte 3 is 0xfe");
  EXPECT_TRUE(contains(message_of<UserError>([&] { read_text_file(folder.write("none", "")); }), "none is empty"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { read_text_file(folder / "missing"); }), "missing: No such file"));
}

std::shared_ptr<const TextCorpus> corpus_of(const TempFolder& folder, const SplitShape& split) {
  const TextCorpus::Options options{{folder.path().string()}, 512, split};
  return std::make_shared<const TextCorpus>(options, ByteTokenizer());
}

TEST(TextCorpus, JoinsDocumentsAndSplitsByTokens) {
  const TempFolder folder;
  folder.write("1", "abc");
  folder.write("2", "defgh");
  const auto corpus = corpus_of(folder, {.train = 0.5, .valid = 0.3, .test = 0.2});
  EXPECT_EQ(corpus->documents(), 2);
  const auto ids = [&](DataSplit split) {
    const auto part = corpus->part(split);
    return Ids(part.begin(), part.end());
  };
  EXPECT_EQ(ids(DataSplit::train), (Ids{'a', 'b', 'c', 0, 'd'}));
  EXPECT_EQ(ids(DataSplit::valid), (Ids{'e', 'f', 'g'}));
  EXPECT_EQ(ids(DataSplit::test), (Ids{'h', 0}));
  for (const double bad : {-0.5, 1.5, std::nan("")})
    EXPECT_THROW(corpus_of(folder, {.train = 0.5, .valid = bad, .test = 0}), Error);
}

TEST(TextCorpus, RefusesWhatTheModelCannotTake) {
  const TempFolder folder;
  folder.write("1", "ab\u00e9");
  const TextCorpus::Options options{{folder.path().string()}, 128, {}};
  const std::string message = message_of<UserError>([&] { TextCorpus(options, ByteTokenizer()); });
  EXPECT_TRUE(contains(message, "/1 gives the token id 195") && contains(message, "128")) << message;
  folder.write("1", std::string("a\0b", 3));
  EXPECT_TRUE(contains(message_of<UserError>([&] { TextCorpus(options, ByteTokenizer()); }), "/1: byte 1"));
  for (const char* name : {"a.jsonl", "b/a.jsonl.gz", "a.jsonl.zst", "a.JSONL", "a.json", "a.ndjson", "a.Json.GZ"}) {
    const auto lines = folder.write(name, "{\"text\":\"a\"}\n");
    const std::string refused = message_of<UserError>([&] { TextCorpus(options, ByteTokenizer()); });
    EXPECT_TRUE(contains(refused, lines.string() + ": ") && contains(refused, "tera preprocess")) << refused;
    std::filesystem::remove(lines);
  }
  folder.write("1", "  \n");  // no ids at all
  EXPECT_TRUE(contains(message_of<UserError>([&] { TextCorpus(options, NullTokenizer(9)); }), "/1 holds no text"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { TextCorpus(options, NullTokenizer(200)); }), "end of document"));
}

TEST(TextDataset, EveryPassReadsEveryWindowOnceInAnotherOrder) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 803; ++i) text += std::to_string(i) + " ";  // an id gives its position
  const TextCorpus::Options options{{folder.write("1", text).string()}, 1000, {}};
  const auto corpus = std::make_shared<const TextCorpus>(options, NullTokenizer(1000));
  const auto order_of = [&](std::uint64_t seed, std::int64_t pass) {
    const TextDataset data(corpus, {DataSplit::train, 8, seed});
    EXPECT_EQ(data.samples(), 100);  // (804 - 1) / 8
    Ids order, ids(9);
    for (std::int64_t i = 0; i < 100; ++i) {
      data.sample(pass * 100 + i, ids);
      for (std::int32_t t = 0; t < 9; ++t) EXPECT_EQ(ids[static_cast<std::size_t>(t)], ids[0] + t);
      order.push_back(ids[0]);
    }
    return order;
  };
  const Ids first = order_of(1, 0);
  EXPECT_EQ(first, order_of(1, 0));
  EXPECT_NE(first, order_of(1, 1));
  EXPECT_NE(first, order_of(2, 0));
  for (Ids order : {first, order_of(1, 1), order_of(2, 7)}) {
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
    std::ranges::sort(order);
    for (std::size_t w = 0; w < 100; ++w) ASSERT_EQ(order[w], static_cast<std::int32_t>(8 * w));
  }
}

TEST(TextDataset, TooLittleTextNamesSplitAndNumbers) {
  const TempFolder folder;
  folder.write("1", "0123456");  // 8 tokens with the end of document
  const auto corpus = corpus_of(folder, {});
  EXPECT_EQ(TextDataset(corpus, {DataSplit::train, 7, 0}).samples(), 1);
  const std::string message = message_of<UserError>([&] { TextDataset(corpus, {DataSplit::train, 8, 0}); });
  EXPECT_TRUE(contains(message, "train split") && contains(message, "8 tokens") && contains(message, "= 9")) << message;
  EXPECT_TRUE(contains(message_of<UserError>([&] { TextDataset(corpus, {DataSplit::valid, 8, 0}); }), "valid split"));
}

}  // namespace
}  // namespace tera::test
