#include "tera/tokenizer/bpe/tiktoken.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tera/base/error.h"
#include "tera/tokenizer/bpe/tiktoken_file.h"
#include "tests/support/expect_error.h"

namespace tera {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k) text += i + k > bytes.size() ? '=' : digits[bits >> (18 - 6 * k) & 63];
  }
  return text;
}

class TiktokenTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / "tiktoken_test";
    fs::create_directories(folder_);
    for (int byte = 0; byte < 256; ++byte) tokens_.emplace_back(1, static_cast<char>(byte));
    for (const char* token : {" t", "he", " the", "<s"}) tokens_.emplace_back(token);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  fs::path write_json() const {
    std::string text = "[";
    for (std::size_t rank = 0; rank < tokens_.size(); ++rank)
      text += fmt::format("{}{{\"rank\": {}, \"token_bytes\": \"{}\", \"token_str\": null}}", rank == 0 ? "" : ",\n",
                          rank, base64(tokens_[rank]));
    return write("vocab.json", text + "]");
  }
  fs::path write_lines() const {
    std::string text;
    for (std::size_t rank = 0; rank < tokens_.size(); ++rank)
      text += base64(tokens_[rank]) + fmt::format(" {}\n", rank);
    return write("vocab.tiktoken", text);
  }
  static Ids encode(const Tokenizer& tokenizer, std::string_view text) {
    Ids ids;
    tokenizer.encode(text, ids);
    return ids;
  }
  void expect_refused(const std::string& text, const std::string& part) const {
    try {
      make_tiktoken({.model = write("bad.json", text), .num_special_tokens = 10, .vocab_size = 12});
      FAIL() << "taken: " << text;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  fs::path folder_;
  std::vector<std::string> tokens_;
};

TEST_F(TiktokenTest, a_json_list_follows_the_special_tokens) {
  const auto tokenizer = make_tiktoken({.model = write_json(), .num_special_tokens = 10, .vocab_size = 270});
  EXPECT_EQ(tokenizer->vocab_size(), 270);
  EXPECT_EQ(tokenizer->eod(), 2);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->pad(), 4);
  EXPECT_EQ(tokenizer->unk(), 0);
  EXPECT_EQ(encode(*tokenizer, "he the"), (Ids{267, 268}));
  EXPECT_EQ(encode(*tokenizer, "he</s><SPECIAL_9> the<s<s>"), (Ids{267, 2, 9, 268, 269, 1}));
  EXPECT_EQ(encode(*tokenizer, "<SPECIAL_10>").size(), 12U);  // no special token: bytes
  EXPECT_EQ(tokenizer->decode(Ids{267, 2, 9, 268}), "he</s><SPECIAL_9> the");
  EXPECT_EQ(tokenizer->decode(Ids{10 + 0xe2, 10 + 0x82}), "\ufffd");
  EXPECT_THROW(tokenizer->decode(Ids{270}), UserError);
}

TEST_F(TiktokenTest, lines_have_their_ranks_as_ids) {
  const auto tokenizer = make_tiktoken(
      {.model = write_lines(), .pattern = "llama3", .special_tokens = {"<|end_of_text|>=300", "<a=b>=301"}});
  EXPECT_EQ(tokenizer->vocab_size(), 302);
  EXPECT_EQ(tokenizer->eod(), 300);
  EXPECT_EQ(encode(*tokenizer, "he the<|end_of_text|><a=b>"), (Ids{257, 258, 300, 301}));
  EXPECT_THROW(make_tiktoken({.model = write_lines()}), UserError);  // no pattern
  EXPECT_THROW(make_tiktoken({.model = write_lines(), .pattern = "v2", .special_tokens = {"x=5"}}), UserError);
  EXPECT_THROW(make_tiktoken({.model = write_lines(), .pattern = "v2", .special_tokens = {"x"}}), UserError);
}

TEST_F(TiktokenTest, an_expression_that_is_not_known_drops_what_it_does_not_match) {
  const auto tokenizer = make_tiktoken({.model = write_lines(), .pattern = R"(\p{L}+|\p{N})"});
  EXPECT_EQ(encode(*tokenizer, "he, the 1!"), (Ids{257, 't', 257, '1'}));
}

TEST_F(TiktokenTest, a_vocab_size_must_be_a_number_of_tokens) {
  for (const char* name : {"x.json", "x.tiktoken"})
    EXPECT_EQ(test::message_of<UserError>(
                  [&] { make_tiktoken({.model = write(name, "[]"), .pattern = "v2", .vocab_size = -5}); }),
              "a vocab_size of -5 is no number of tokens; 0 means the default");
}

TEST_F(TiktokenTest, bad_files_are_named_with_their_location) {
  expect_refused("{}", "list");
  expect_refused("[", "JSON");
  expect_refused("[1]", "[0]");
  expect_refused(R"([{"rank": 1, "token_bytes": "AA==", "token_str": null}])", "[0].rank");
  expect_refused(R"([{"rank": 0, "token_bytes": 5}])", "[0].token_bytes");
  expect_refused(R"([{"rank": 0, "token_bytes": "?A=="}])", "[0].token_bytes");
  expect_refused(R"([{"rank": 0, "token_bytes": "AQ=="}])", "byte 0");
  expect_refused(R"([{"rank": 0, "token_bytes": "AA=="}])", "needs 2");
  expect_refused(std::string(100'000, '['), "JSON");
  EXPECT_THROW(read_tiktoken_lines(write("bad.tiktoken", "AA== 0\nAQ== x\n")), UserError);
  EXPECT_THROW(read_tiktoken_lines(write("bad.tiktoken", "AA== 0\nAQ== 0\n")), UserError);
  EXPECT_THROW(read_tiktoken_lines(write("bad.tiktoken", "AA== 99999999\n")), UserError);
}

}  // namespace
}  // namespace tera
