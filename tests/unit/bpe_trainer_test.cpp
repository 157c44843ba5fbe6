#include "tera/tokenizer/bpe/bpe_trainer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "tera/base/error.h"
#include "tera/tokenizer/bpe/bpe_model.h"
#include "tera/tokenizer/bpe/byte_level.h"

namespace tera {
namespace {

using Ids = std::vector<std::int32_t>;

std::string random_text(std::mt19937& random, std::size_t size) {
  static const std::vector<std::string> words{" the",   " there", " then", " other", " bother", " aaaa",   " aaaaaaa",
                                              " naïve", "\n",     " 1234", " 漢字",  ".",       " théâtre"};
  std::string text;
  while (text.size() < size) text += words[random() % words.size()];
  return text;
}

// The definition: count all pairs of all words anew before each merge.
std::vector<std::pair<std::int32_t, std::int32_t>> train_naively(const BpeTrainOptions& options, std::string_view text,
                                                                 TrainedBpe start) {
  std::map<std::string, std::int32_t> ids;
  for (std::size_t id = 0; id < start.tokens.size(); ++id) ids[start.tokens[id]] = static_cast<std::int32_t>(id);
  std::vector<Ids> words;
  while (!text.empty()) {
    const std::size_t size = first_word_bytes(options.pattern, text);
    Ids& word = words.emplace_back();
    for (const char c : text.substr(0, size)) word.push_back(ids.at(std::string(1, c)));
    text.remove_prefix(size);
  }
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;
  while (static_cast<std::int64_t>(start.tokens.size()) < options.vocab_size) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> counts;
    for (const Ids& word : words)
      for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    std::pair<std::int32_t, std::int32_t> best;
    std::int64_t max_count = 0;
    for (const auto& [pair, count] : counts)
      if (count > max_count) max_count = count, best = pair;
    if (max_count < options.min_frequency) break;
    const std::string both =
        start.tokens[static_cast<std::size_t>(best.first)] + start.tokens[static_cast<std::size_t>(best.second)];
    if (ids.emplace(both, static_cast<std::int32_t>(start.tokens.size())).second) start.tokens.push_back(both);
    merges.push_back(best);
    for (Ids& word : words)
      for (std::size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == best.first && word[i + 1] == best.second) {
          word[i] = ids.at(both);
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
  }
  return merges;
}

WordCounts count(const BpeTrainOptions& options, std::string_view text) {
  WordCounts counts;
  counts.add_text(options.pattern, text);
  return counts;
}

TEST(BpeTrainer, finds_the_merges_of_the_definition) {
  std::mt19937 random(6);
  for (const SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::llama3}) {
    BpeTrainOptions options{.vocab_size = 257 + 90, .pattern = pattern};
    const std::string text = random_text(random, 3000);
    TrainedBpe start = train_bpe({.vocab_size = 257, .pattern = pattern}, WordCounts());
    ASSERT_EQ(start.tokens.size(), 257U);
    const TrainedBpe trained = train_bpe(options, count(options, text));
    EXPECT_EQ(trained.merges, train_naively(options, text, start));
    EXPECT_GT(trained.merges.size(), 40U);
  }
}

TEST(BpeTrainer, stops_at_the_least_frequency) {
  const BpeTrainOptions options{.vocab_size = 300, .min_frequency = 3};
  const TrainedBpe trained = train_bpe(options, count(options, "ab ab ab cd cd"));
  // "ab" occurs three times, but " ab" twice and "cd" twice.
  ASSERT_EQ(trained.merges.size(), 1U);
  EXPECT_EQ(trained.tokens.back(), "ab");
}

TEST(BpeTrainer, does_not_depend_on_threads_or_on_the_order_of_texts) {
  std::mt19937 random(7);
  std::vector<std::string> texts;
  for (int i = 0; i < 40; ++i) texts.push_back(random_text(random, 500));
  const auto train = [](std::vector<std::string> from, unsigned threads) {
    const BpeTrainOptions options{.vocab_size = 330, .threads = threads};
    std::size_t next = 0;
    return train_bpe(options, count_words(options, [&](std::string& text) {
                       if (next == from.size()) return false;
                       text = from[next++];
                       return true;
                     }));
  };
  const TrainedBpe one = train(texts, 1);
  std::reverse(texts.begin(), texts.end());
  EXPECT_EQ(one.tokens, train(texts, 3).tokens);
}

TEST(BpeTrainer, a_fault_of_the_reader_is_reported_by_the_caller) {
  const BpeTrainOptions options{.threads = 3};
  EXPECT_THROW(count_words(options, [](std::string&) -> bool { throw UserError("no such file"); }), UserError);
  EXPECT_THROW(train_bpe({.vocab_size = 200}, WordCounts()), UserError);
}

TEST(BpeTrainer, writes_a_tokenizer_json_that_encodes_what_was_learnt) {
  std::mt19937 random(8);
  const BpeTrainOptions options{.vocab_size = 340, .pattern = SplitPattern::llama3};
  const TrainedBpe trained = train_bpe(options, count(options, random_text(random, 4000)));
  const auto path = std::filesystem::path(testing::TempDir()) / "bpe_trainer_test.json";
  write_tokenizer_json(path, trained);
  const nlohmann::json file = nlohmann::json::parse(std::ifstream(path));
  std::filesystem::remove(path);
  EXPECT_EQ(file.at("added_tokens")[0].at("content"), "<|endoftext|>");
  EXPECT_EQ(file.at("added_tokens")[0].at("id"), 0);
  EXPECT_EQ(file.at("pre_tokenizer").at("pretokenizers")[0].at("pattern").at("Regex"), regex_of(SplitPattern::llama3));
  const nlohmann::json& vocab = file.at("model").at("vocab");
  ASSERT_EQ(vocab.size(), trained.tokens.size());
  BpeData data{.tokens = std::vector<std::string>(vocab.size()), .byte_level = true};
  for (const auto& [token, id] : vocab.items()) data.tokens[id.get<std::size_t>()] = token;
  for (const nlohmann::json& merge : file.at("model").at("merges"))
    data.merges.emplace_back(vocab.at(merge[0].get<std::string>()), vocab.at(merge[1].get<std::string>()));
  Ids ids;
  BpeModel(data).make_text_encoder(options.pattern)->encode(" the théâtre 漢字", ids);
  std::string joined;
  for (const std::int32_t id : ids) joined += trained.tokens[static_cast<std::size_t>(id)];
  EXPECT_EQ(joined, " the théâtre 漢字");
  EXPECT_LT(ids.size(), 8U);
}

}  // namespace
}  // namespace tera
