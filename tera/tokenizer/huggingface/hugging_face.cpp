#include "tera/tokenizer/huggingface/hugging_face.h"

#include <algorithm>
#include <unordered_map>

#include "tera/base/error.h"
#include "tera/base/utf8.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

class HuggingFaceEncoder final : public Encoder {
 public:
  explicit HuggingFaceEncoder(const HuggingFaceTokenizer& tokenizer)
      : tokenizer_(tokenizer), parts_(tokenizer.parts()), rule_(parts_.rule) {
    if (rule_.pattern)
      words_ = bpe().make_text_encoder(*rule_.pattern);
    else if (rule_.spaces)
      spaced_ = bpe().make_spaced_encoder(*rule_.spaces);
    else
      words_ = parts_.model->make_encoder();
  }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    // Offsets then fit 32 bits, whatever a step adds.
    require_user(text.size() <= Normalizer::max_bytes, "a text of {} bytes cannot be tokenized; the limit is {}",
                 text.size(), Normalizer::max_bytes);
    const PostProcessor& around = parts_.post_processor;
    ids.insert(ids.end(), around.before.begin(), around.before.end());
    encode_raw(text, ids);
    ids.insert(ids.end(), around.after.begin(), around.after.end());
    if (normalized_.capacity() + pieces_.text.capacity() > kept_bytes) drop_memory();
  }

 private:
  static constexpr std::size_t kept_bytes = std::size_t{8} << 20;  // buffers of longer texts are freed

  void drop_memory() {
    std::string().swap(normalized_);
    pieces_ = {};
  }

  const BpeModel& bpe() const { return static_cast<const BpeModel&>(*parts_.model); }

  void encode_raw(std::string_view text, std::vector<std::int32_t>& ids) {
    if (tokenizer_.raw_tokens().empty()) {
      if (!text.empty()) encode_normalized(text, true, ids);
      return;
    }
    tokenizer_.raw_tokens().split(text, raw_parts_);
    for (const TextPart& part : raw_parts_) {
      if (part.id >= 0)
        ids.push_back(part.id);
      else
        encode_normalized(text.substr(part.begin, part.end - part.begin), part.begin == 0, ids);
    }
  }

  void encode_normalized(std::string_view text, bool at_start, std::vector<std::int32_t>& ids) {
    std::size_t start = at_start && rule_.prefix_only_at_start ? front_character(text).bytes : 0;
    if (parts_.normalizer) {
      normalized_.assign(text);
      start = parts_.normalizer->apply(normalized_, start);
      text = normalized_;
    }
    if (tokenizer_.normalized_tokens().empty()) {
      if (!text.empty()) encode_words(text, start, ids);
      return;
    }
    tokenizer_.normalized_tokens().split(text, normalized_parts_);
    for (const TextPart& part : normalized_parts_) {
      if (part.id >= 0)
        ids.push_back(part.id);
      else
        encode_words(text.substr(part.begin, part.end - part.begin), start - std::min(start, part.begin), ids);
    }
  }

  // `start`: bytes at the front that stand for the first character of the input, where a rule needs it.
  void encode_words(std::string_view text, std::size_t start, std::vector<std::int32_t>& ids) {
    const bool prefix = rule_.prefix_space && (start > 0 || !rule_.prefix_only_at_start);
    if (rule_.pattern) {
      if (prefix && !text.starts_with(' ')) {
        pieces_.text.assign(1, ' ').append(text);
        text = pieces_.text;
      }
      words_->encode(text, ids);
    } else if (rule_.spaces) {
      const bool begins = text.starts_with(' ') || text.starts_with(space_mark);
      spaced_->encode(text, prefix && (!begins || rule_.prefix_in_any_case), ids);
    } else {
      encode_pieces(text, start, ids);
    }
  }

  void encode_pieces(std::string_view text, std::size_t start, std::vector<std::int32_t>& ids) {
    if (!parts_.pre_tokenizer) return words_->encode(text, ids);
    pieces_.text.assign(text);
    pieces_.pieces.assign(1, {0, static_cast<std::uint32_t>(text.size())});
    pieces_.start = start;
    parts_.pre_tokenizer->apply(pieces_);
    const std::string_view cut = pieces_.text;
    for (const auto [begin, end] : pieces_.pieces) words_->encode(cut.substr(begin, end - begin), ids);
  }

  const HuggingFaceTokenizer& tokenizer_;
  const TokenizerParts& parts_;
  const TextRule& rule_;
  std::unique_ptr<WordEncoder> words_;
  std::unique_ptr<SpacedEncoder> spaced_;
  std::vector<TextPart> raw_parts_, normalized_parts_;
  std::string normalized_;
  PieceText pieces_;
};

// `tokenizers` cuts text everywhere for a token of which the normalizer leaves nothing, and takes one by chance of two
// tokens of which it makes the same.
TokenFinder make_finder(const TokenizerParts& parts, bool normalized) {
  std::vector<TokenFinder::Pattern> patterns;
  std::unordered_map<std::string, const AddedToken*> forms;
  for (const AddedToken& token : parts.added) {
    if (token.normalized != normalized) continue;
    std::string text = token.content;
    if (normalized && parts.normalizer) parts.normalizer->apply(text);
    if (text.empty()) fail_user("added_tokens: the normalizer leaves nothing of '{:.80}'", token.content);
    const auto [known, fresh] = forms.emplace(text, &token);
    if (!fresh)
      fail_user("added_tokens: '{:.80}' and '{:.80}' are the same behind the normalizer, so that neither is meant",
                known->second->content, token.content);
    patterns.push_back({std::move(text), token});
  }
  return TokenFinder(patterns);
}

std::string join(const std::vector<std::string>& tokens, std::string_view between) {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text += between;
    text += tokens[i];
  }
  return text;
}

}  // namespace

HuggingFaceTokenizer::HuggingFaceTokenizer(TokenizerParts parts)
    : parts_(std::move(parts)), raw_(make_finder(parts_, false)), normalized_(make_finder(parts_, true)) {
  for (const AddedToken& token : parts_.added) {
    const auto id = static_cast<std::size_t>(token.id);
    if (id >= parts_.tokens.size()) parts_.tokens.resize(id + 1);
    parts_.tokens[id] = token.content;
    // Such a token is decoded in the form in which it is looked for.
    if (token.normalized && parts_.normalizer) parts_.normalizer->apply(parts_.tokens[id]);
  }
}

std::unique_ptr<Encoder> HuggingFaceTokenizer::make_encoder() const {
  return std::make_unique<HuggingFaceEncoder>(*this);
}

std::string HuggingFaceTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids) {
    const bool known = id >= 0 && static_cast<std::size_t>(id) < parts_.tokens.size();
    if (known && !parts_.tokens[static_cast<std::size_t>(id)].empty())
      tokens.push_back(parts_.tokens[static_cast<std::size_t>(id)]);
  }
  if (!parts_.decoder) return join(tokens, " ");
  parts_.decoder->apply(tokens);
  return mend_utf8(join(tokens, ""));
}

}  // namespace tera
