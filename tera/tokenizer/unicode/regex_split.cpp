#include "tera/tokenizer/unicode/regex_split.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tera/base/error.h"

namespace tera {
namespace {

struct BehaviorName {
  std::string_view name;
  SplitBehavior behavior;
};
constexpr std::array behavior_names = {BehaviorName{"Removed", SplitBehavior::removed},
                                       BehaviorName{"Isolated", SplitBehavior::isolated},
                                       BehaviorName{"MergedWithPrevious", SplitBehavior::merged_with_previous},
                                       BehaviorName{"MergedWithNext", SplitBehavior::merged_with_next},
                                       BehaviorName{"Contiguous", SplitBehavior::contiguous}};

// Joins neighbours in place: `join(before, next)` says whether `next` belongs to the piece that ends with `before`.
template <class Join>
void merge(std::vector<MatchSpan>& spans, Join join) {
  std::size_t kept = 0;
  bool last_matched = false;
  for (const MatchSpan span : spans) {
    if (kept > 0 && join(last_matched, span.is_match))
      spans[kept - 1].end = span.end;
    else
      spans[kept++] = span;
    last_matched = span.is_match;
  }
  spans.resize(kept);
}

// Joins neighbours in place from the end.
void merge_with_next(std::vector<MatchSpan>& spans) {
  std::size_t first = spans.size();
  bool next_matched = false;
  for (std::size_t i = spans.size(); i-- > 0;) {
    const MatchSpan span = spans[i];
    if (first < spans.size() && span.is_match && !next_matched)
      spans[first].begin = span.begin;
    else
      spans[--first] = span;
    next_matched = span.is_match;
  }
  spans.erase(spans.begin(), spans.begin() + static_cast<std::ptrdiff_t>(first));
}

template <class Find>
class Split final : public PreTokenizer {
 public:
  Split(Find find, SplitRule rule) : find_(std::move(find)), rule_(rule) {}

  void apply(PieceText& text) const override {
    std::vector<MatchSpan> spans;
    std::vector<PieceText::Piece> pieces;
    pieces.reserve(text.text.size() / 4 + 1);
    for (const PieceText::Piece piece : text.pieces) {
      spans.clear();
      find_(std::string_view(text.text).substr(piece.begin, piece.end - piece.begin), spans);
      if (rule_.invert)
        for (MatchSpan& span : spans) span.is_match = !span.is_match;
      append_pieces(spans, rule_.behavior, piece.begin, pieces);
    }
    text.pieces = std::move(pieces);
  }

 private:
  Find find_;
  SplitRule rule_;
};

template <class Find>
std::unique_ptr<PreTokenizer> make_split(Find find, SplitRule rule) {
  return std::make_unique<Split<Find>>(std::move(find), rule);
}

}  // namespace

SplitBehavior parse_split_behavior(std::string_view name, std::string_view where) {
  const auto found = std::ranges::find(behavior_names, name, &BehaviorName::name);
  require_user(found != behavior_names.end(),
               "{} is '{:.40}'; it can be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous", where,
               name);
  return found->behavior;
}

void append_pieces(std::vector<MatchSpan>& spans, SplitBehavior behavior, std::uint32_t offset,
                   std::vector<PieceText::Piece>& pieces) {
  if (behavior == SplitBehavior::contiguous)
    merge(spans, [](bool before, bool next) { return before == next; });
  else if (behavior == SplitBehavior::merged_with_previous)
    merge(spans, [](bool before, bool next) { return next && !before; });
  else if (behavior == SplitBehavior::merged_with_next)
    merge_with_next(spans);
  for (const MatchSpan span : spans) {
    if (span.begin == span.end || (behavior == SplitBehavior::removed && span.is_match)) continue;
    pieces.push_back({span.begin + offset, span.end + offset});
  }
}

std::unique_ptr<PreTokenizer> make_regex_split(Regex pattern, SplitRule rule) {
  return make_split([regex = std::move(pattern)](std::string_view text,
                                                 std::vector<MatchSpan>& spans) { regex.find_all(text, spans); },
                    rule);
}

std::unique_ptr<PreTokenizer> make_text_split(std::string pattern, SplitRule rule) {
  return make_split([needle = std::move(pattern)](std::string_view text,
                                                  std::vector<MatchSpan>& spans) { find_all(needle, text, spans); },
                    rule);
}

}  // namespace tera
