#pragma once
// Encoding for SentencePiece-like vocabularies, in which a text is one word: it is cut where no merge can cross.

#include <cstdint>
#include <memory>
#include <vector>

#include "tera/tokenizer/bpe/bpe_model.h"
#include "tera/tokenizer/bpe/bpe_vocab.h"

namespace tera {

// The pairs of neighbouring characters inside of any token that merging can make. No merge crosses other pairs, so the
// text may be cut there.
class BpeCuts {
 public:
  explicit BpeCuts(const BpeVocab& vocab);

  // A filter without false negatives: false only if no token has the one before the other. U+2581 and the space are
  // equivalent.
  bool may_touch(char32_t left, char32_t right) const {
    const std::size_t bit = bit_of(left, right);
    return bits_[bit >> 6] >> (bit & 63) & 1;
  }
  bool allowed() const { return allowed_; }

 private:
  static constexpr std::size_t ascii_bits = std::size_t{128} * 128;

  std::size_t bit_of(char32_t left, char32_t right) const {
    if ((left | right) < 128) return left * 128 + right;
    const std::uint64_t both = std::uint64_t{left} << 32 | right;
    return ascii_bits + static_cast<std::size_t>(both * 0x9e3779b97f4a7c15ULL >> shift_);
  }

  bool allowed_;
  int shift_ = 64 - 16;
  std::vector<std::uint64_t> bits_;  // pairs of ASCII, then hashes of the others
};

std::unique_ptr<SpacedEncoder> make_spaced_encoder(const BpeVocab& vocab, const BpeCuts& cuts, SpaceRule rule);

}  // namespace tera
