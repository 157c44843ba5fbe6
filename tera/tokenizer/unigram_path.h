#pragma once
// Viterbi segmentation (Unigram) of a text into tokens: each has a score, and the largest sum wins. Of equal sums the
// one found first wins; so results depend on how sums are rounded, and both ways that references have are here.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tera/tokenizer/bpe/double_array.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {

template <class Score>
class UnigramPath {
 public:
  struct Rules {
    const DoubleArray* tokens = nullptr;
    std::span<const Score> scores;  // by id
    Score unk_score = 0;
    std::int32_t unk_id = 0;
  };
  struct Cut {
    std::size_t end;
    std::int32_t id;
  };

  // The cuts from the end of the text to its front. Calls on_unknown(character) where no token consists of just the
  // character at that position.
  template <class OnUnknown>
  std::span<const Cut> find(const Rules& rules, std::string_view text, OnUnknown on_unknown) {
    best_.assign(text.size() + 1, Step{0, 0, -1});
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t character = front_character(text.substr(begin)).bytes;
      bool single = false;
      rules.tokens->for_prefixes(text.substr(begin), [&](std::size_t bytes, std::int32_t id) {
        offer(begin, bytes, rules.scores[static_cast<std::size_t>(id)], id);
        single |= bytes == character;
      });
      if (!single) {
        on_unknown(text.substr(begin, character));
        offer(begin, character, rules.unk_score, rules.unk_id);
      }
      begin += character;
    }
    cuts_.clear();
    for (std::size_t end = text.size(); end > 0; end = best_[end].begin) cuts_.push_back({end, best_[end].id});
    return cuts_;
  }

 private:
  // The best segmentation up to one position.
  struct Step {
    Score score;
    std::uint32_t begin;  // begin of the last token
    std::int32_t id;      // id of the last token, negative if none was found yet
  };

  void offer(std::size_t begin, std::size_t bytes, Score added, std::int32_t id) {
    Step& target = best_[begin + bytes];
    const Score score = added + best_[begin].score;
    if (target.id < 0 || score > target.score) target = {score, static_cast<std::uint32_t>(begin), id};
  }

  std::vector<Step> best_;
  std::vector<Cut> cuts_;
};

}  // namespace tera
