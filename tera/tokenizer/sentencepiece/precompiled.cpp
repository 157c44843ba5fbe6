#include "tera/tokenizer/sentencepiece/precompiled.h"

#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "tera/base/error.h"
#include "tera/base/utf8.h"
#include "tera/tokenizer/huggingface/normalize.h"
#include "tera/tokenizer/unicode/unicode.h"
#include "tera/tokenizer/unicode/unicode_grapheme.h"

namespace tera {
namespace {

std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::array<int, 256> value;
  value.fill(-1);
  for (std::size_t i = 0; i < digits.size(); ++i) value[static_cast<unsigned char>(digits[i])] = static_cast<int>(i);
  std::string out;
  std::uint32_t bits = 0;
  int bit_count = 0;
  for (const char c : text) {
    const int digit = value[static_cast<unsigned char>(c)];
    if (digit < 0) return {};
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    bit_count += 6;
    if (bit_count < 8) continue;
    bit_count -= 8;
    out += static_cast<char>(bits >> bit_count & 255);
  }
  return out;
}

// A unit of a Darts double array: where the children of a node are, or the value of a leaf.
struct Unit {
  std::uint32_t bits;
  bool has_leaf() const { return bits >> 8 & 1; }
  std::uint32_t value() const { return bits & 0x7fffffffU; }
  std::uint32_t label() const { return bits & 0x800000ffU; }
  std::uint32_t offset() const { return bits >> 10 << ((bits & 0x200U) >> 6); }
};

template <class Take>
void for_each_character(std::string_view text, const Take& take) {
  for (; !text.empty(); text.remove_prefix(front_character(text).bytes)) take(front_character(text).code);
}

class Precompiled final : public Normalizer {
 public:
  Precompiled(std::vector<Unit> trie, std::string replacements)
      : trie_(std::move(trie)), replacements_(std::move(replacements)) {
    for (std::size_t c = 0; c < 128; ++c) {
      const char text = static_cast<char>(c);
      stays_[c] = !find({&text, 1}) && c != '\r';  // a line end of two characters is one cluster
    }
  }

 private:
  std::size_t rewrite(std::string& text, std::size_t start) const override {
    const std::size_t after = start == 0 ? 0 : start_of(text, start);
    const std::size_t same = plain_prefix(text);
    if (same == text.size()) return after;
    std::string out(text, 0, same);
    out.reserve(text.size() + text.size() / 8);
    for (std::string_view rest = std::string_view(text).substr(same); !rest.empty();) {
      const std::size_t bytes = front_grapheme(rest);
      replace(rest.substr(0, bytes), [&](std::string_view, std::string_view fresh) { out += fresh; });
      rest.remove_prefix(bytes);
      check_size(out.size());
      const std::size_t plain = plain_prefix(rest);
      out += rest.substr(0, plain);
      rest.remove_prefix(plain);
    }
    text = std::move(out);
    return after;
  }

  // The accounting of `tokenizers`: a replacement takes the position of the old character, additional characters come
  // beside it, and dropped characters belong to the one before, if there is one.
  std::size_t start_of(std::string_view text, std::size_t start) const {
    FirstPlace place(text, start);
    std::optional<Rewritten> last;  // what is dropped behind it may still become part of it
    bool inside = true;
    const auto put = [&](Rewritten next) {
      if (last) inside = place.take(*last);
      last = next;
    };
    const auto take = [&](std::string_view old, std::string_view fresh) {
      std::int64_t missing = 0;  // characters of the old without one in their place yet
      for_each_character(old, [&](char32_t) { ++missing; });
      for_each_character(fresh, [&](char32_t code) { put({code, missing-- > 0 ? 0 : 1}); });
      if (missing > 0 && last) last->change -= missing;
    };
    for (std::string_view rest = text; !rest.empty() && inside;) {
      const std::size_t bytes = front_grapheme(rest);
      replace(rest.substr(0, bytes), take);
      rest.remove_prefix(bytes);
    }
    if (last) place.take(*last);
    return place.size();
  }

  // Bytes at the front that are clusters of their own and stay: ASCII with ASCII or nothing behind it.
  std::size_t plain_prefix(std::string_view text) const {
    std::size_t i = 0;
    while (i < text.size() && is_ascii(text[i]) && stays_[static_cast<unsigned char>(text[i])]) ++i;
    return i > 0 && i < text.size() && !is_ascii(text[i]) ? i - 1 : i;
  }
  static bool is_ascii(char c) { return static_cast<unsigned char>(c) < 128; }

  // A short cluster is replaced in full as soon as its front is in the table, as in `tokenizers`.
  template <class Take>
  void replace(std::string_view cluster, const Take& take) const {
    if (cluster.size() < 6)
      if (const auto found = find(cluster)) return take(cluster, *found);
    while (!cluster.empty()) {
      const std::string_view c = cluster.substr(0, front_character(cluster).bytes);
      take(c, find(c).value_or(c));
      cluster.remove_prefix(c.size());
    }
  }

  // The replacement of the shortest entry that `text` starts with.
  std::optional<std::string_view> find(std::string_view text) const {
    std::size_t node = trie_[0].offset();
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte == 0) return {};
      node ^= byte;
      if (node >= trie_.size() || trie_[node].label() != byte) return {};
      const Unit unit = trie_[node];
      node ^= unit.offset();
      if (!unit.has_leaf()) continue;
      if (node >= trie_.size()) return {};
      return replacement_at(trie_[node].value());
    }
    return {};
  }

  std::optional<std::string_view> replacement_at(std::size_t place) const {
    if (place >= replacements_.size()) return {};
    if ((static_cast<unsigned char>(replacements_[place]) & 0xc0) == 0x80) return {};  // inside of a character
    return std::string_view(replacements_.data() + place);
  }

  std::vector<Unit> trie_;
  std::string replacements_;  // ended by zeros, the last one by the string's own
  std::array<bool, 128> stays_{};
};

}  // namespace

std::unique_ptr<Normalizer> make_precompiled_normalizer(std::string_view charsmap, const std::string& where) {
  const std::optional<std::string> bytes = decode_base64(charsmap);
  require_user(bytes.has_value(), "{} is no base64", where);
  std::uint32_t size = 0;
  require_user(bytes->size() >= sizeof(size), "{} has {} bytes, too few for its size", where, bytes->size());
  std::memcpy(&size, bytes->data(), sizeof(size));
  require_user(size > 0 && size % sizeof(Unit) == 0 && size <= bytes->size() - sizeof(size),
               "{} tells of {} bytes of trie and has {} bytes in all", where, size, bytes->size());
  std::vector<Unit> trie(size / sizeof(Unit));
  std::memcpy(trie.data(), bytes->data() + sizeof(size), size);
  std::string replacements = bytes->substr(sizeof(size) + size);
  require_user(valid_utf8_prefix(replacements) == replacements.size(), "{} has replacements that are no UTF-8", where);
  return std::make_unique<Precompiled>(std::move(trie), std::move(replacements));
}

}  // namespace tera
