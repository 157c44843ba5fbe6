#include <algorithm>
#include <string>

#include "tera/base/error.h"
#include "tera/parallel/stage_layout.h"

namespace tera {
namespace {

constexpr std::string_view key = "dist.pipeline_model_parallel_layout";
constexpr std::size_t max_symbols = 65536;

// Expands repeats of Megatron's layout string; keeps the position of each symbol for messages.
class Unroller {
 public:
  struct Symbol {
    char what;
    std::size_t at;  // in the layout as written
  };

  explicit Unroller(std::string_view layout) : layout_(layout) {}

  std::vector<Symbol> unroll() {
    for (skip(); at_ < layout_.size(); skip()) {
      const std::size_t begin = out_.size(), opened_at = at_;
      const bool group = layout_[at_] == '(';
      if (group)
        read_group(opened_at);
      else
        read_symbol();
      skip();
      const bool repeated = at_ < layout_.size() && layout_[at_] == '*';
      if (group && !repeated) complain("a group in parentheses is followed by '*' and a number", at_);
      if (repeated) repeat(begin);
    }
    return std::move(out_);
  }

  [[noreturn]] void complain(std::string_view rule, std::size_t at) const {
    if (at >= layout_.size()) fail_user("{} \"{}\" ends too early: {}", key, layout_, rule);
    fail_user("{} \"{}\", '{}' at position {}: {}", key, layout_, layout_[at], at + 1, rule);
  }

 private:
  void skip() {
    while (at_ < layout_.size() && (layout_[at_] == ',' || layout_[at_] == ' ')) ++at_;
  }

  void read_symbol() {
    const char c = layout_[at_];
    if (c == ')') complain("there is no '(' before it", at_);
    if (c == '*') complain("'*' follows E, t, m, L, '|' or ')'", at_);
    if (c >= '0' && c <= '9') complain("a number stands only behind '*'", at_);
    if (std::string_view("EtmL|").find(c) == std::string_view::npos)
      complain(
          "valid are E (embedding), t (layer), m (extra prediction head), L (loss), '|', '*' with a number, "
          "parentheses and commas",
          at_);
    out_.push_back({c, at_++});
  }

  void read_group(std::size_t opened_at) {
    const std::size_t before = out_.size();
    for (++at_, skip(); at_ < layout_.size() && layout_[at_] != ')'; skip()) {
      if (layout_[at_] == '(') complain("groups do not nest", at_);
      const std::size_t begin = out_.size();
      read_symbol();
      skip();
      if (at_ < layout_.size() && layout_[at_] == '*') repeat(begin);
    }
    if (at_ == layout_.size()) complain("this parenthesis is not closed", opened_at);
    if (out_.size() == before) complain("there is nothing between these parentheses", opened_at);
    ++at_;
  }

  // Repeats the symbols from begin on, which are in out_ once, as often as the number says.
  void repeat(std::size_t begin) {
    const std::size_t star = at_++;
    if (at_ == layout_.size() || layout_[at_] < '0' || layout_[at_] > '9') complain("'*' needs a number", star);
    std::size_t times = 0;
    for (; at_ < layout_.size() && layout_[at_] >= '0' && layout_[at_] <= '9'; ++at_)
      times = std::min(max_symbols + 1, times * 10 + static_cast<std::size_t>(layout_[at_] - '0'));
    if (begin + (out_.size() - begin) * times > max_symbols) complain("this unrolls to more than 65536 symbols", star);
    const std::vector<Symbol> once(out_.begin() + static_cast<std::ptrdiff_t>(begin), out_.end());
    out_.resize(begin);
    for (std::size_t i = 0; i < times; ++i) out_.insert(out_.end(), once.begin(), once.end());
  }

  std::string_view layout_;
  std::size_t at_ = 0;
  std::vector<Symbol> out_;
};

}  // namespace

std::vector<StageBlocks> parse_layout(std::string_view layout) {
  Unroller unroller(layout);
  const auto symbols = unroller.unroll();
  if (symbols.empty() || symbols.front().what != 'E')
    unroller.complain("the first stage begins with E", symbols.empty() ? layout.size() : symbols.front().at);
  if (symbols.back().what != 'L') unroller.complain("the last stage ends with L", symbols.back().at);
  std::vector<StageBlocks> stages(1);
  int layers = 0, heads = 0;
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    const auto [what, at] = symbols[i];
    StageBlocks& stage = stages.back();
    if (what == 'E' && i > 0) unroller.complain("E stands once, at the beginning", at);
    if (what == 'L' && i + 1 < symbols.size()) unroller.complain("L stands once, at the end", at);
    if (what == 't' && heads > 0) unroller.complain("layers stand before m", at);
    if (what == 'm' && heads > stage.mtp_layers) unroller.complain("all m stand in one stage", at);
    switch (what) {
      case 'E': stage.embedding = true; break;
      case 'L': stage.loss = true; break;
      case 't': ++stage.layers, ++layers; break;
      case 'm': ++stage.mtp_layers, ++heads; break;
      default: stages.push_back({.first_layer = layers}); break;
    }
  }
  return stages;
}

}  // namespace tera
