#include "tera/tokenizer/sentencepiece/unigram.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "tera/base/error.h"
#include "tera/tokenizer/unigram_path.h"

namespace tera {
namespace {

// `tokenizers` reads the digits of a number as an integer and divides by a power of ten, which is not always the
// nearest double. Sums that tie in exact numbers are decided by such last bits, so scores are read the same way. The
// digits are those of the shortest decimal that means `score`, as files have it.
double rounded_twice(double score) {
  if (!std::isfinite(score)) return score;
  char text[64];
  const char* const end = std::to_chars(text, text + sizeof(text), std::abs(score), std::chars_format::scientific).ptr;
  std::uint64_t digits = 0;
  int exponent = 0, decimals = 0;
  const char* at = text;
  for (; *at != 'e'; ++at) {
    if (*at == '.') continue;
    digits = digits * 10 + static_cast<std::uint64_t>(*at - '0');
    ++decimals;
  }
  std::from_chars(at + (at[1] == '+' ? 2 : 1), end, exponent);
  exponent -= decimals - 1;
  double value = static_cast<double>(digits);
  constexpr int max_exponent = 308;
  for (; exponent < -max_exponent; exponent += max_exponent) value /= 1e308;
  value = exponent < 0 ? value / std::pow(10.0, -exponent) : value * std::pow(10.0, exponent);
  return std::signbit(score) ? -value : value;
}

}  // namespace

class UnigramEncoder final : public WordEncoder {
 public:
  explicit UnigramEncoder(const Unigram& model) : model_(model) {}

  void encode(std::string_view word, std::vector<std::int32_t>& ids) override {
    const auto cuts = path_.find({&model_.tokens_, model_.scores_, model_.unk_score_, model_.unk_id_}, word,
                                 [&](std::string_view character) {
                                   if (model_.unk_id_ < 0)
                                     fail_user("'{}' is not in the vocabulary, which has no unknown token", character);
                                 });
    for (std::size_t i = cuts.size(); i-- > 0;) {
      if (cuts[i].id != model_.unk_id_) {
        ids.push_back(cuts[i].id);
        continue;
      }
      const std::size_t begin = i + 1 < cuts.size() ? cuts[i + 1].end : 0;
      while (i > 0 && cuts[i - 1].id == model_.unk_id_) --i;  // neighbours that are unknown are one
      add_unknown(word.substr(begin, cuts[i].end - begin), ids);
    }
  }

 private:
  void add_unknown(std::string_view text, std::vector<std::int32_t>& ids) const {
    const std::int32_t known = model_.tokens_.find(text);  // such as the text "<unk>" itself
    const auto byte_id = [&](char c) { return model_.byte_ids_[static_cast<unsigned char>(c)]; };
    if (known >= 0)
      ids.push_back(known);
    else if (model_.byte_fallback_ && std::ranges::all_of(text, [&](char c) { return byte_id(c) >= 0; }))
      std::ranges::transform(text, std::back_inserter(ids), byte_id);
    else
      ids.push_back(model_.unk_id_);
  }

  const Unigram& model_;
  UnigramPath<double> path_;
};

Unigram::Unigram(std::span<const Entry> vocabulary, const UnigramOptions& options)
    : unk_id_(options.unk_id), byte_fallback_(options.byte_fallback) {
  constexpr double unk_penalty = 10;
  require(vocabulary.size() < std::numeric_limits<std::int32_t>::max(), "a vocabulary of {} tokens", vocabulary.size());
  std::vector<DoubleArray::Key> keys;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [token, score] : vocabulary) {
    if (!token.empty()) keys.push_back({token, static_cast<std::int32_t>(scores_.size())});
    scores_.push_back(rounded_twice(score));
    least = std::min(least, scores_.back());
  }
  unk_score_ = least - unk_penalty;
  tokens_ = DoubleArray(std::move(keys));
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte)
    byte_ids_[byte] = tokens_.find(fmt::format("<0x{:02X}>", byte));
}

std::unique_ptr<WordEncoder> Unigram::make_encoder() const { return std::make_unique<UnigramEncoder>(*this); }

}  // namespace tera
