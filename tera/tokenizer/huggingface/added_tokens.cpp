#include "tera/tokenizer/huggingface/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

bool ends_with_word(std::string_view text) { return !text.empty() && is_word_character(back_character(text).code); }

bool starts_with_word(std::string_view text) { return !text.empty() && is_word_character(front_character(text).code); }

std::size_t without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    const Utf8Character last = back_character(text);
    if (!is_white_space(last.code)) break;
    text.remove_suffix(last.bytes);
  }
  return text.size();
}

std::size_t leading_space(std::string_view text) {
  const std::size_t size = text.size();
  while (!text.empty()) {
    const Utf8Character first = front_character(text);
    if (!is_white_space(first.code)) break;
    text.remove_prefix(first.bytes);
  }
  return size - text.size();
}

constexpr unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

}  // namespace

TokenFinder::TokenFinder(std::span<const Pattern> patterns) : nodes_(1) {
  for (const Pattern& pattern : patterns) {
    add(pattern.text, static_cast<std::int32_t>(tokens_.size()));
    tokens_.push_back(pattern.token);
  }
  one_first_ = std::ranges::count(first_, true) == 1;
  if (one_first_) only_first_ = static_cast<char>(std::ranges::find(first_, true) - first_.begin());
}

void TokenFinder::add(std::string_view pattern, std::int32_t token) {
  std::size_t node = 0;
  for (const char c : pattern) {
    const auto byte = static_cast<unsigned char>(c);
    auto& next = nodes_[node].next;
    const auto at = std::ranges::lower_bound(next, byte, {}, &std::pair<unsigned char, std::int32_t>::first);
    if (at != next.end() && at->first == byte) {
      node = static_cast<std::size_t>(at->second);
      continue;
    }
    const std::size_t added = nodes_.size();
    next.insert(at, {byte, static_cast<std::int32_t>(added)});
    nodes_.emplace_back();
    node = added;
  }
  nodes_[node].token = token;
  first_[byte_at(pattern, 0)] = true;
  if (pattern.size() == 1) alone_[byte_at(pattern, 0)] = true;
  if (pattern.size() > 1) first_two_.set(std::size_t{byte_at(pattern, 0)} << 8 | byte_at(pattern, 1));
}

std::size_t TokenFinder::next_candidate(std::string_view text, std::size_t from) const {
  if (one_first_) {
    const void* found = std::memchr(text.data() + from, only_first_, text.size() - from);
    return found == nullptr ? text.size() : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  }
  while (from < text.size() && !first_[byte_at(text, from)]) ++from;
  return from;
}

TokenFinder::Match TokenFinder::match_at(std::string_view text, std::size_t begin) const {
  Match longest;
  std::size_t node = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    const auto& next = nodes_[node].next;
    const auto at =
        std::ranges::lower_bound(next, byte_at(text, i), {}, &std::pair<unsigned char, std::int32_t>::first);
    if (at == next.end() || at->first != byte_at(text, i)) break;
    node = static_cast<std::size_t>(at->second);
    if (nodes_[node].token >= 0) longest = {begin, i + 1, nodes_[node].token};
  }
  return longest;
}

TokenFinder::Match TokenFinder::find(std::string_view text, std::size_t from) const {
  for (;; ++from) {
    from = next_candidate(text, from);
    if (from >= text.size()) return {};
    const unsigned char first = byte_at(text, from);
    const bool two = from + 1 < text.size() && first_two_[std::size_t{first} << 8 | byte_at(text, from + 1)];
    if (!two && !alone_[first]) continue;
    const Match match = match_at(text, from);
    if (match.token >= 0) return match;
  }
}

void TokenFinder::keep(std::string_view text, Match match, std::size_t& done, std::vector<TextPart>& parts) const {
  const AddedToken& token = tokens_[static_cast<std::size_t>(match.token)];
  if (token.single_word && (ends_with_word(text.substr(0, match.begin)) || starts_with_word(text.substr(match.end))))
    return;
  if (token.lstrip) match.begin = std::max(without_trailing_space(text.substr(0, match.begin)), done);
  if (token.rstrip) match.end += leading_space(text.substr(match.end));
  if (match.begin >= match.end) return;  // the match before has consumed it
  if (done < match.begin) parts.push_back({done, match.begin, -1});
  parts.push_back({match.begin, match.end, token.id});
  done = match.end;
}

void TokenFinder::split(std::string_view text, std::vector<TextPart>& parts) const {
  parts.clear();
  std::size_t done = 0;
  if (!empty()) {
    for (Match match = find(text, 0); match.token >= 0; match = find(text, match.end)) keep(text, match, done, parts);
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
}

}  // namespace tera
