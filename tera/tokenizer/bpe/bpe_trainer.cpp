#include "tera/tokenizer/bpe/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <queue>
#include <unordered_set>

#include "tera/base/error.h"
#include "tera/base/utf8.h"
#include "tera/tokenizer/bpe/byte_level.h"

namespace tera {

namespace {

using Id = std::int32_t;

struct PairOfIds {
  Id left, right;
  bool operator==(const PairOfIds&) const = default;
  std::uint64_t number() const {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
};

// Gives pairs numbers in order of appearance; open addressing.
class PairNumbers {
 public:
  std::uint32_t number_of(PairOfIds pair) {
    const std::uint64_t key = pair.number();
    for (std::size_t at = slot_of(key);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == nothing) {
        slots_[at] = static_cast<std::uint32_t>(keys_.size());
        keys_.push_back(key);
        if (keys_.size() * 2 > slots_.size()) grow();
        return static_cast<std::uint32_t>(keys_.size() - 1);
      }
      if (keys_[slots_[at]] == key) return slots_[at];
    }
  }
  PairOfIds pair(std::uint32_t number) const {
    return {static_cast<Id>(keys_[number] >> 32), static_cast<Id>(keys_[number] & 0xffffffff)};
  }

 private:
  static constexpr std::uint32_t nothing = 0xffffffff;

  std::size_t slot_of(std::uint64_t key) const {
    const std::uint64_t mixed = key * 0x9e3779b97f4a7c15ULL;
    return static_cast<std::size_t>(mixed ^ (mixed >> 32)) & (slots_.size() - 1);
  }
  void grow() {
    slots_.assign(slots_.size() * 2, nothing);
    for (std::uint32_t i = 0; i < keys_.size(); ++i) {
      std::size_t at = slot_of(keys_[i]);
      while (slots_[at] != nothing) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = i;
    }
  }

  std::vector<std::uint32_t> slots_ = std::vector<std::uint32_t>(std::size_t{1} << 16, nothing);
  std::vector<std::uint64_t> keys_;
};

// All words as symbols, with the counts of all pairs of neighbours.
class MergeSearch {
 public:
  MergeSearch(const std::vector<WordCounts::Word>& words, const std::array<Id, 256>& byte_ids) {
    std::size_t total = 0;
    for (const WordCounts::Word& word : words) total += word.text.size();
    symbols_.reserve(total);
    words_.reserve(words.size());
    for (const WordCounts::Word& word : words) {
      words_.push_back({symbols_.size(), static_cast<std::uint32_t>(word.text.size()), word.count});
      for (const char byte : word.text) symbols_.push_back(byte_ids[static_cast<unsigned char>(byte)]);
    }
    for (std::uint32_t i = 0; i < words_.size(); ++i) {
      const Word& word = words_[i];
      for (std::uint32_t k = 0; k + 1 < word.size; ++k)
        change({symbols_[word.begin + k], symbols_[word.begin + k + 1]}, static_cast<std::int64_t>(word.count), i);
    }
    queue_changed();
  }

  struct Best {
    PairOfIds pair;
    std::int64_t count;
  };
  // The most frequent pair; a count of 0 if there is none.
  Best next() {
    while (!queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      const std::int64_t count = pairs_[top.number].count;
      if (count == top.count) {
        best_ = top.number;
        return {numbers_.pair(top.number), count};
      }
      if (count <= 0) continue;
      top.count = count;
      queue_.push(top);
    }
    return {{}, 0};
  }

  // Merges all occurrences of the pair that next() returned.
  void merge(Id both) {
    const PairOfIds pair = numbers_.pair(best_);
    std::vector<std::uint32_t> words = std::move(pairs_[best_].words);
    pairs_[best_] = {};
    for (const std::uint32_t word : words) merge_in_word(word, pair, both);
    pairs_[best_].count = 0;
    queue_changed();
  }

 private:
  struct Word {
    std::size_t begin;
    std::uint32_t size;
    std::uint64_t count;
  };
  struct Pair {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // in which it occurs or has occurred
    bool grown = false;
  };
  struct Candidate {
    std::int64_t count;
    std::uint64_t pair;
    std::uint32_t number;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void change(PairOfIds of, std::int64_t by, std::uint32_t word) {
    const std::uint32_t number = numbers_.number_of(of);
    if (number == pairs_.size()) pairs_.emplace_back();
    Pair& pair = pairs_[number];
    pair.count += by;
    if (by < 0) return;
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
    if (!pair.grown) grown_.push_back(number);
    pair.grown = true;
  }

  void merge_in_word(std::uint32_t index, PairOfIds pair, Id both) {
    Word& word = words_[index];
    Id* const symbols = symbols_.data() + word.begin;
    const auto count = static_cast<std::int64_t>(word.count);
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < word.size; ++i) {
      if (symbols[i] != pair.left || i + 1 == word.size || symbols[i + 1] != pair.right) {
        symbols[kept++] = symbols[i];
        continue;
      }
      if (kept > 0) {
        change({symbols[kept - 1], pair.left}, -count, index);
        change({symbols[kept - 1], both}, count, index);
      }
      if (i + 2 < word.size) {
        change({pair.right, symbols[i + 2]}, -count, index);
        change({both, symbols[i + 2]}, count, index);
      }
      symbols[kept++] = both;
      ++i;
    }
    word.size = kept;
  }

  void queue_changed() {
    for (const std::uint32_t number : grown_) {
      pairs_[number].grown = false;
      if (pairs_[number].count > 0) queue_.push({pairs_[number].count, numbers_.pair(number).number(), number});
    }
    grown_.clear();
  }

  std::vector<Id> symbols_;
  std::vector<Word> words_;
  PairNumbers numbers_;
  std::vector<Pair> pairs_;
  std::vector<std::uint32_t> grown_;
  std::priority_queue<Candidate> queue_;
  std::uint32_t best_ = 0;
};

// Special tokens, then the bytes in the order of the characters that stand for them.
TrainedBpe first_tokens(const BpeTrainOptions& options, std::array<Id, 256>& byte_ids) {
  TrainedBpe trained;
  trained.pattern = options.pattern;
  trained.tokens = options.special_tokens;
  trained.special_count = options.special_tokens.size();
  std::array<int, 256> order;
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [](int a, int b) {
    return byte_alphabet()[static_cast<std::size_t>(a)] < byte_alphabet()[static_cast<std::size_t>(b)];
  });
  for (const int byte : order) {
    byte_ids[static_cast<std::size_t>(byte)] = static_cast<Id>(trained.tokens.size());
    trained.tokens.emplace_back(1, static_cast<char>(byte));
  }
  return trained;
}

// Each must be a token of its own, also beside the bytes, which are spelled as single characters.
void check_special_tokens(const std::vector<std::string>& tokens) {
  std::unordered_set<std::string> taken;
  for (int byte = 0; byte < 256; ++byte) taken.insert(to_byte_level(std::string(1, static_cast<char>(byte))));
  for (const std::string& token : tokens) {
    require_user(!token.empty(), "--special-tokens: one of them is empty");
    require_user(valid_utf8_prefix(token) == token.size(), "--special-tokens: one of them is not UTF-8");
    require_user(taken.insert(token).second, "--special-tokens '{}': there is such a token already", token);
  }
}

}  // namespace

TrainedBpe train_bpe(const BpeTrainOptions& options, const WordCounts& words,
                     FunctionRef<void(std::int64_t)> on_merge) {
  check_special_tokens(options.special_tokens);
  const auto least = static_cast<std::int64_t>(options.special_tokens.size()) + 256;
  require_user(options.vocab_size >= least && options.vocab_size <= 1 << 21,
               "a vocab_size of {} cannot be learnt; it may be from {} (the bytes and special tokens) to {}",
               options.vocab_size, least, 1 << 21);
  std::array<Id, 256> byte_ids{};
  TrainedBpe trained = first_tokens(options, byte_ids);
  std::unordered_set<std::string> spelled(trained.tokens.begin(), trained.tokens.end());
  MergeSearch search(words.sorted(), byte_ids);
  while (static_cast<std::int64_t>(trained.tokens.size()) < options.vocab_size) {
    const MergeSearch::Best best = search.next();
    if (best.count < std::max<std::int64_t>(options.min_frequency, 1)) break;
    const auto [left, right] = best.pair;
    std::string both = trained.tokens[static_cast<std::size_t>(left)] + trained.tokens[static_cast<std::size_t>(right)];
    // Two pairs may spell the same token: both merges are kept, the id is the first one's.
    const bool fresh = spelled.insert(both).second;
    Id id = static_cast<Id>(trained.tokens.size());
    if (fresh)
      trained.tokens.push_back(std::move(both));
    else
      id = static_cast<Id>(std::find(trained.tokens.begin(), trained.tokens.end(), both) - trained.tokens.begin());
    trained.merges.emplace_back(left, right);
    search.merge(id);
    if (trained.merges.size() % 16 == 0) on_merge(static_cast<std::int64_t>(trained.merges.size()));
  }
  return trained;
}

TrainedBpe train_bpe(const BpeTrainOptions& options, const WordCounts& words) {
  return train_bpe(options, words, [](std::int64_t) {});
}

}  // namespace tera
