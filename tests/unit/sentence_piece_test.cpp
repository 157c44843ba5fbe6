#include "tera/tokenizer/sentencepiece/sentence_piece.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tests/support/paths.h"
#include "tests/unit/text_steps.h"

namespace tera::test {
namespace {

using nlohmann::json;

const std::filesystem::path data = source_path("tests/golden/data");

TEST(SentencePiece, EqualsTheReferenceBothWays) {
  for (const json& golden : text_steps()["sentence_piece"]) {
    const SentencePieceTokenizer tokenizer(data / golden["model"].get<std::string>());
    EXPECT_EQ(tokenizer.vocab_size(), golden["size"]);
    EXPECT_EQ(tokenizer.eod(), golden["eod"]);
    EXPECT_EQ(tokenizer.pad(), golden["pad"]);
    EXPECT_EQ(tokenizer.bos(), golden["bos"]);
    EXPECT_EQ(tokenizer.unk(), golden["unk"]);
    for (const json& entry : golden["cases"]) {
      std::vector<std::int32_t> ids;
      tokenizer.encode(entry[0].get<std::string>(), ids);
      EXPECT_EQ(ids, entry[1].get<std::vector<std::int32_t>>()) << entry[0];
      EXPECT_EQ(tokenizer.decode(ids), entry[2].get<std::string>()) << entry[0];
    }
  }
}

TEST(SentencePiece, IdsOutsideOfTheVocabularyAreMarked) {
  const SentencePieceTokenizer tokenizer(data / "bpe.model");
  const std::vector<std::int32_t> ids = {-1, 1'000'000};
  EXPECT_EQ(tokenizer.decode(ids), "\ufffd\ufffd");
}

class BrokenModel : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  // Loads these bytes and uses what comes of it; true if they were refused.
  bool refused(std::string_view bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    try {
      const SentencePieceTokenizer tokenizer(path_);
      std::vector<std::int32_t> ids;
      for (const char* text : {"hello world", "\ufb01ne \u00bd \u3000 A\u030a", "", "\u65e5"})
        tokenizer.encode(text, ids);
      (void)tokenizer.decode(ids);
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find(path_.string()), 0u) << error.what();
      return true;
    } catch (const Error&) {
    }
    return false;
  }

  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("tera_broken_" + std::to_string(getpid()) + ".model");
};

TEST_F(BrokenModel, CutShortIsRefused) {
  for (const char* name : {"unigram.model", "bpe.model"}) {
    const std::string bytes = read_whole_file(data / name, 1 << 20);
    for (std::size_t size = 0; size < bytes.size(); size += 41) (void)refused(std::string_view(bytes).substr(0, size));
    EXPECT_TRUE(refused({}));
    EXPECT_TRUE(refused(std::string_view(bytes).substr(0, bytes.size() / 2 + 1)) ||
                refused(std::string_view(bytes).substr(0, bytes.size() / 2 + 2)));
  }
  EXPECT_TRUE(refused("not a model"));
  EXPECT_TRUE(refused(std::string(1000, '\x0a')));
}

TEST_F(BrokenModel, ChangedBytesDoNoHarm) {
  std::mt19937 random(3);
  for (const char* name : {"unigram.model", "bpe.model"}) {
    const std::string good = read_whole_file(data / name, 1 << 20);
    for (int i = 0; i < 150; ++i) {
      std::string bytes = good;
      for (std::size_t k = 0; k <= random() % 4; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
      (void)refused(bytes);
    }
  }
}

TEST(SentencePiece, AMissingFileIsNamed) {
  EXPECT_THROW(SentencePieceTokenizer("/nowhere/tokenizer.model"), UserError);
}

}  // namespace
}  // namespace tera::test
