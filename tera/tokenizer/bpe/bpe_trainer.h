#pragma once
// Trains a byte-level BPE on text. The merges are those that the trainer of Hugging Face's `tokenizers` finds: the
// most frequent pair comes first, of several the one of smallest ids.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tera/base/function_ref.h"
#include "tera/tokenizer/split_pattern.h"

namespace tera {

struct BpeTrainOptions {
  std::int64_t vocab_size = 32768;  // special tokens and the 256 bytes included
  std::int64_t min_frequency = 2;   // minimum for a pair to become a token
  SplitPattern pattern = SplitPattern::gpt2;
  std::vector<std::string> special_tokens{"<|endoftext|>"};
  unsigned threads = 1;
};

// Counts the occurrences of each word. Memory grows with the number of different words only.
class WordCounts {
 public:
  WordCounts();
  WordCounts(WordCounts&&) noexcept;
  WordCounts& operator=(WordCounts&&) noexcept;
  ~WordCounts();

  void add_text(SplitPattern pattern, std::string_view text);
  void add(std::string_view word, std::uint64_t count);
  void add(const WordCounts& others);
  std::size_t size() const;  // different words

  struct Word {
    std::string_view text;
    std::uint64_t count;
  };
  std::vector<Word> sorted() const;  // by their bytes, so that the order in which they came does not matter

 private:
  struct Table;
  std::unique_ptr<Table> table_;
};

struct TrainedBpe {
  std::vector<std::string>
      tokens;  // by id, in bytes: special tokens, the bytes in the order of their characters, merges
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;
  std::size_t special_count = 0;
  SplitPattern pattern = SplitPattern::gpt2;
};

// Counts the words of all texts that `next` gives (it fills its argument, false at the end) with the threads of the
// options; calls of `next` are serialised.
WordCounts count_words(const BpeTrainOptions& options, FunctionRef<bool(std::string&)> next);

// Calls `on_merge` with the number of merges done, now and then.
TrainedBpe train_bpe(const BpeTrainOptions& options, const WordCounts& words, FunctionRef<void(std::int64_t)> on_merge);
TrainedBpe train_bpe(const BpeTrainOptions& options, const WordCounts& words);

// As a tokenizer.json that Hugging Face's `tokenizers` loads.
void write_tokenizer_json(const std::filesystem::path& path, const TrainedBpe& trained);

}  // namespace tera
