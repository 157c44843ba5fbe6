#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tera/base/error.h"
#include "tera/data/batching/batch_loader.h"
#include "tera/data/sft/sft_dataset.h"
#include "tera/tokenizer/plain_tokenizers.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using Ids = std::vector<std::int32_t>;

const ChatFormat brackets{.system = "[{content}]", .user = "<{content}>", .assistant = "A:{content}."};

class SftData : public testing::Test {
 protected:
  SftDataset read(const std::string& lines, std::int64_t seq_length, double begin = 0, double end = 1) const {
    const auto path = folder_.write("chat.jsonl", lines);
    return SftDataset({.paths = {path.string()},
                       .begin = begin,
                       .end = end,
                       .seq_length = seq_length,
                       .vocab_size = vocab_,
                       .format = brackets},
                      ByteTokenizer());
  }
  std::string refused(const std::string& lines) const {
    return message_of<UserError>([&] { read(lines, 8); });
  }

  TempFolder folder_;
  std::int64_t vocab_ = 512;
};

// A dot for what has no token, so that samples can be read.
std::string text_of(const Dataset& data, std::int64_t index, std::size_t ids) {
  Ids tokens(ids);
  data.sample(index, tokens);
  std::string text;
  for (const std::int32_t id : tokens) text += id < 0 ? '_' : static_cast<char>(id);
  return text;
}

// c: counts as a target; B or b: begins a conversation, with or without counting.
std::string marks_of(const Dataset& data, std::int64_t index, std::size_t ids) {
  std::vector<std::uint8_t> marks(ids);
  data.marks(index, marks);
  std::string text;
  for (const std::uint8_t mark : marks) text += "_cbB"[mark];
  return text;
}

constexpr const char* two_conversations =
    R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"},)"
    R"({"role":"assistant","content":"yo"},{"role":"system","content":""},)"
    R"({"role":"assistant","content":"x"}]})"
    "\n";
constexpr const char* without_system =
    R"({"id":7,"messages":[{"role":"user","content":"\u00e9"},{"content":"k","role":"assistant"}]})"
    "\n";

TEST_F(SftData, PacksTheConversationsOfALine) {
  const SftDataset data = read(std::string(two_conversations) + without_system, 20);
  ASSERT_EQ(data.samples(), 2);
  EXPECT_EQ(text_of(data, 0, 21), "[s]<hi>A:yo.[]A:x.___");
  EXPECT_EQ(marks_of(data, 0, 21), "b________cccb___cc___");
  EXPECT_EQ(text_of(data, 1, 9), "<\xc3\xa9>A:k._");
  EXPECT_EQ(marks_of(data, 1, 9), "b_____cc_");
  EXPECT_EQ(text_of(data, 2, 21), text_of(data, 0, 21)) << "sample i is line i mod n";
}

TEST_F(SftData, BecomesRowsWithLossOnAnswersOnly) {
  const SftDataset data = read(two_conversations, 20);
  BatchLoader loader(data,
                     {.seq_length = 20, .micro_batch_size = 1, .global_batch_size = 1, .reset_attention_mask = true});
  Ids tokens(20), targets(20), positions(20), offsets(21);
  std::vector<std::int64_t> row_ids(20);
  const BatchCounts counts = loader.fill(0, 0, {tokens, targets, positions, row_ids, offsets});
  EXPECT_EQ(counts.targets, 5);
  EXPECT_EQ(loader.counted_targets(0), 5);
  std::string answers;
  for (const std::int32_t target : targets) answers += target < 0 ? '_' : static_cast<char>(target);
  EXPECT_EQ(answers, "________yo.____x.___");
  EXPECT_EQ(positions, (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(counts.documents, 2);
  EXPECT_EQ(Ids(offsets.begin(), offsets.begin() + 3), (Ids{0, 12, 20}));
}

// A line of seq_length + 1 tokens or more is cut to seq_length, and the conversations after that are dropped.
TEST_F(SftData, CutsWhatIsLonger) {
  EXPECT_EQ(text_of(read(two_conversations, 19), 0, 20), "[s]<hi>A:yo.[]A:x.__");
  EXPECT_EQ(text_of(read(two_conversations, 18), 0, 19), "[s]<hi>A:yo.[]A:x._");
  EXPECT_EQ(text_of(read(two_conversations, 17), 0, 18), "[s]<hi>A:yo.[]A:x_");
  EXPECT_EQ(text_of(read(two_conversations, 5), 0, 6), "[s]<h_");
}

// A first token is no target, and what is cut off is none.
TEST_F(SftData, CountsSamplesWithoutTarget) {
  const std::string lines = std::string(two_conversations) + without_system;  // answers at 9 and 6
  EXPECT_EQ(read(lines, 20).without_target(), 0);
  EXPECT_EQ(read(lines, 9).without_target(), 1);
  EXPECT_EQ(read(lines, 6).without_target(), 2);
  EXPECT_EQ(read(R"({"messages":[{"role":"user","content":"x"}]})", 20).without_target(), 1);
}

TEST_F(SftData, SplitsByLines) {
  std::string lines;
  for (int i = 0; i < 5; ++i) lines += R"({"messages":[{"role":"user","content":")" + std::to_string(i) + "\"}]}\n";
  EXPECT_EQ(read(lines, 4, 0, 0.5).samples(), 2);  // 2.5 to even
  const SftDataset rest = read(lines, 4, 0.5, 1);
  EXPECT_EQ(rest.samples(), 3);
  EXPECT_EQ(text_of(rest, 0, 5), "<2>__");
}

TEST_F(SftData, NamesFileLineAndField) {
  const std::string good = without_system;
  const std::string file = (folder_ / "chat.jsonl").string();
  EXPECT_TRUE(refused(good + "{\"messages\":[}\n").starts_with(file + ":2: no JSON at byte 14: "));
  EXPECT_TRUE(contains(refused(good + "\n" + good), ":2: the line is blank"));
  EXPECT_TRUE(contains(refused("[1]\n"), ":1: the line is no object"));
  EXPECT_TRUE(contains(refused("Once upon a time\n"), ":1: the line is no object"));
  EXPECT_TRUE(contains(refused("{\"messages\":[],\"score\":NaN}\n"), ":1: a number that is none"));
  EXPECT_TRUE(contains(refused("{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}\n"), "surrogate pair"));
  EXPECT_TRUE(contains(refused("{\"text\":\"x\"}\n"), ":1: messages: a list was expected"));
  EXPECT_TRUE(contains(refused("{\"messages\":[]}\n"), ":1: messages: there is nothing in them"));
  EXPECT_TRUE(contains(refused("{\"messages\":[{\"role\":\"user\",\"content\":5}]}\n"), "messages[0].content: text"));
  EXPECT_TRUE(contains(refused("{\"messages\":[\"x\"]}\n"), "messages[0].role: text was expected"));
  EXPECT_TRUE(contains(refused("{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}\n"),
                       "messages[0].role: 'tool' is not system, user or assistant"));
  EXPECT_TRUE(contains(refused("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}\n"),
                       ":1: the line is not UTF-8: byte 40 is 0xff"));
  std::string deep(100000, '[');
  EXPECT_TRUE(contains(refused("{\"messages\":" + deep + "\n"), "nested more than 1000 deep"));
  vocab_ = 70;
  EXPECT_TRUE(contains(refused(good), ":1: the token id 195 is not below model.vocab_size, which is 70"));
  EXPECT_TRUE(contains(message_of<UserError>([] {
                         SftDataset({.paths = {"/no/such"}, .seq_length = 4, .vocab_size = 512}, ByteTokenizer());
                       }),
                       "/no/such"));
}

// A tokenizer that puts a token before every text.
class FramingTokenizer final : public Tokenizer {
 public:
  class Frame final : public Encoder {
    void encode(std::string_view, std::vector<std::int32_t>& ids) override { ids.push_back(1); }
  };
  std::unique_ptr<Encoder> make_encoder() const override { return std::make_unique<Frame>(); }
  std::string decode(std::span<const std::int32_t>) const override { return {}; }
  std::int64_t vocab_size() const override { return 2; }
  std::int32_t eod() const override { return 0; }
  std::int32_t pad() const override { return -1; }
};

TEST_F(SftData, RefusesWhatCanBeReadOnlyOnce) {
  const std::string pipe = (folder_ / "pipe.jsonl").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("-"), std::string("/dev/null")}) {
    const std::string message = message_of<UserError>([&] {
      SftDataset({.paths = {path}, .seq_length = 8, .vocab_size = vocab_, .format = brackets}, ByteTokenizer());
    });
    EXPECT_TRUE(message.starts_with(path + ": not a regular file; dataset.kind=sft")) << message;
  }
}

TEST_F(SftData, RefusesTokenizersThatFrameEveryText) {
  const auto path = folder_.write("chat.jsonl", two_conversations);
  EXPECT_TRUE(contains(message_of<UserError>([&] {
                         SftDataset({.paths = {path.string()}, .seq_length = 4, .vocab_size = 512, .format = brackets},
                                    FramingTokenizer());
                       }),
                       "tokenizer.tokenizer_hf_no_include_special_tokens=true"));
}

}  // namespace
}  // namespace tera::test
