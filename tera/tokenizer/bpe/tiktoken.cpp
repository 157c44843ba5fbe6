#include "tera/tokenizer/bpe/tiktoken.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <unordered_map>

#include "tera/base/error.h"
#include "tera/base/utf8.h"
#include "tera/tokenizer/bpe/bpe_model.h"
#include "tera/tokenizer/bpe/bpe_vocab.h"
#include "tera/tokenizer/bpe/tiktoken_file.h"
#include "tera/tokenizer/tokenizer_options.h"
#include "tera/tokenizer/unicode/regex_split.h"

namespace tera {

namespace {

using Id = std::int32_t;

constexpr std::array<std::string_view, 7> named_specials{"<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"};

struct SpecialToken {
  std::string name;
  Id id;
};

// Finds special tokens in text; of several at one position the longest.
class SpecialTokens {
 public:
  explicit SpecialTokens(const std::vector<SpecialToken>& tokens) {
    for (const SpecialToken& token : tokens) {
      ids_.emplace(token.name, token.id);
      if (first_bytes_.find(token.name[0]) == std::string::npos) first_bytes_ += token.name[0];
      if (std::find(sizes_.begin(), sizes_.end(), token.name.size()) == sizes_.end())
        sizes_.push_back(token.name.size());
    }
    std::sort(sizes_.begin(), sizes_.end(), std::greater<>());
  }

  struct Found {
    std::size_t begin, size;
    Id id;
  };
  // The first special token from `from` on; an empty match at the end of the text if there is none.
  Found next(std::string_view text, std::size_t from) const {
    for (std::size_t at = text.find_first_of(first_bytes_, from); at != std::string_view::npos;
         at = text.find_first_of(first_bytes_, at + 1)) {
      for (const std::size_t size : sizes_) {
        if (size > text.size() - at) continue;
        const auto found = ids_.find(text.substr(at, size));
        if (found != ids_.end()) return {at, size, found->second};
      }
    }
    return {text.size(), 0, -1};
  }
  Id id_of(std::string_view name) const {
    const auto found = ids_.find(name);
    return found == ids_.end() ? -1 : found->second;
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  std::unordered_map<std::string, Id, Hash, std::equal_to<>> ids_;
  std::string first_bytes_;
  std::vector<std::size_t> sizes_;  // sizes of names, the largest first
};

struct Parts {
  std::vector<std::string> tokens;  // by id, in bytes; special ones are empty
  std::vector<SpecialToken> specials;
  std::int64_t vocab_size = 0;
};

class TiktokenTokenizer final : public Tokenizer {
 public:
  TiktokenTokenizer(Parts parts, std::string_view pattern)
      : tokens_(std::move(parts.tokens)),
        specials_(parts.specials),
        vocab_size_(parts.vocab_size),
        model_(BpeData{.tokens = tokens_, .merges_by_id = true, .ignore_merges = true}),
        pattern_(named_pattern(pattern)) {
    if (!pattern_)
      split_ = make_regex_split(Regex(pattern, RegexDialect::rust, "tiktoken_pattern"),
                                {.behavior = SplitBehavior::removed, .invert = true});
    for (const SpecialToken& special : parts.specials) tokens_[static_cast<std::size_t>(special.id)] = special.name;
  }

  std::unique_ptr<Encoder> make_encoder() const override;
  std::string decode(std::span<const Id> ids) const override {
    std::string bytes;
    for (const Id id : ids) {
      require_user(
          id >= 0 && static_cast<std::size_t>(id) < tokens_.size() && !tokens_[static_cast<std::size_t>(id)].empty(),
          "no token has the id {}; the vocabulary ends at {}", id, tokens_.size());
      bytes += tokens_[static_cast<std::size_t>(id)];
    }
    return mend_utf8(bytes);
  }
  std::int64_t vocab_size() const override { return vocab_size_; }
  Id eod() const override { return first_of({"</s>", "<|endoftext|>", "<|end_of_text|>"}); }
  Id pad() const override { return first_of({"<pad>", "<|pad|>", "<|finetune_right_pad_id|>"}); }
  Id bos() const override { return first_of({"<s>", "<|begin_of_text|>"}); }
  Id unk() const override { return first_of({"<unk>"}); }

  const SpecialTokens& specials() const { return specials_; }
  const BpeModel& model() const { return model_; }
  const PreTokenizer* split() const { return split_.get(); }
  std::unique_ptr<WordEncoder> make_word_encoder() const {
    return pattern_ ? model_.make_text_encoder(*pattern_) : model_.make_encoder();
  }

 private:
  static std::optional<SplitPattern> named_pattern(std::string_view pattern) {
    constexpr std::array<std::pair<std::string_view, SplitPattern>, 8> names{{{"v1", SplitPattern::tiktoken_v1},
                                                                              {"v2", SplitPattern::tekken},
                                                                              {"tekken", SplitPattern::tekken},
                                                                              {"gpt2", SplitPattern::gpt2},
                                                                              {"llama3", SplitPattern::llama3},
                                                                              {"cl100k", SplitPattern::cl100k},
                                                                              {"o200k", SplitPattern::o200k},
                                                                              {"qwen2", SplitPattern::qwen2}}};
    for (const auto& [name, known] : names)
      if (pattern == name) return known;
    return known_split_pattern(pattern, RegexDialect::rust);
  }
  Id first_of(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names)
      if (const Id id = specials_.id_of(name); id >= 0) return id;
    return -1;
  }

  std::vector<std::string> tokens_;  // by id, special ones by name
  SpecialTokens specials_;
  std::int64_t vocab_size_;
  BpeModel model_;
  std::optional<SplitPattern> pattern_;
  std::unique_ptr<PreTokenizer> split_;  // for a pattern without a scanner
};

class TiktokenEncoder final : public Encoder {
 public:
  explicit TiktokenEncoder(const TiktokenTokenizer& tokenizer)
      : tokenizer_(tokenizer), words_(tokenizer.make_word_encoder()) {}

  void encode(std::string_view text, std::vector<Id>& ids) override {
    require_user(text.size() < std::size_t{1} << 31, "a text of {} bytes is too long for a tokenizer", text.size());
    for (std::size_t at = 0; at < text.size();) {
      const auto special = tokenizer_.specials().next(text, at);
      encode_part(text.substr(at, special.begin - at), ids);
      if (special.size > 0) ids.push_back(special.id);
      at = special.begin + special.size;
    }
  }

 private:
  void encode_part(std::string_view text, std::vector<Id>& ids) {
    if (text.empty()) return;
    if (tokenizer_.split() == nullptr) return words_->encode(text, ids);
    pieces_.text.assign(text);
    pieces_.pieces.assign(1, {0, static_cast<std::uint32_t>(text.size())});
    tokenizer_.split()->apply(pieces_);
    const std::string_view cut = pieces_.text;
    for (const auto [begin, end] : pieces_.pieces) words_->encode(cut.substr(begin, end - begin), ids);
  }

  const TiktokenTokenizer& tokenizer_;
  std::unique_ptr<WordEncoder> words_;
  PieceText pieces_;
};

std::unique_ptr<Encoder> TiktokenTokenizer::make_encoder() const { return std::make_unique<TiktokenEncoder>(*this); }

// Megatron's ids: special tokens first, then the list.
Parts parts_of_json(const TiktokenOptions& options) {
  constexpr std::int64_t default_vocab_size = 131072;
  Parts parts;
  parts.vocab_size = options.vocab_size > 0 ? options.vocab_size : default_vocab_size;
  const std::int64_t specials = options.num_special_tokens;
  require_user(specials >= static_cast<std::int64_t>(named_specials.size()) && specials < parts.vocab_size,
               "tiktoken_num_special_tokens is {}; it may be from {} to the vocab_size ({}) less 1", specials,
               named_specials.size(), parts.vocab_size);
  require_user(parts.vocab_size <= std::int64_t{1} << BpeVocab::id_bits, "a vocab_size of {} is too large (at most {})",
               parts.vocab_size, 1 << BpeVocab::id_bits);
  require_user(options.special_tokens.empty(), "special_tokens are for .tiktoken files; a JSON list has its own");
  const auto wanted = static_cast<std::size_t>(parts.vocab_size - specials);
  std::vector<std::string> listed = read_tiktoken_json(options.model, wanted);
  require_user(listed.size() == wanted, "{}: {} tokens; a vocab_size of {} with {} special tokens needs {}",
               options.model.string(), listed.size(), parts.vocab_size, specials, wanted);
  parts.tokens.resize(static_cast<std::size_t>(specials));
  for (std::string& token : listed) parts.tokens.push_back(std::move(token));
  for (std::int64_t i = 0; i < specials; ++i) {
    const auto named = static_cast<std::size_t>(i);
    const std::string name =
        named < named_specials.size() ? std::string(named_specials[named]) : fmt::format("<SPECIAL_{}>", i);
    parts.specials.push_back({name, static_cast<Id>(i)});
  }
  return parts;
}

SpecialToken read_special(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  std::int64_t id = -1;
  if (equals != std::string::npos && equals > 0) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + equals + 1, end, id);
    if (error != std::errc() || stop != end) id = -1;
  }
  require_user(id >= 0 && id < std::int64_t{1} << BpeVocab::id_bits,
               "the special token '{}' is not NAME=ID with an id from 0 to {}", text, (1 << BpeVocab::id_bits) - 1);
  return {text.substr(0, equals), static_cast<Id>(id)};
}

Parts parts_of_lines(const TiktokenOptions& options) {
  require_user(!options.pattern.empty(),
               "{}: a .tiktoken file does not say how text is cut; give tiktoken_pattern ({})", options.model.string(),
               tiktoken_pattern_names);
  Parts parts;
  parts.tokens = read_tiktoken_lines(options.model);
  for (const std::string& text : options.special_tokens) {
    SpecialToken special = read_special(text);
    const auto at = static_cast<std::size_t>(special.id);
    if (parts.tokens.size() <= at) parts.tokens.resize(at + 1);
    require_user(parts.tokens[at].empty(), "the special token '{}' has the id of another token", text);
    for (const SpecialToken& other : parts.specials)
      require_user(other.id != special.id && other.name != special.name,
                   "the special tokens {}={} and '{}' do not go together", other.name, other.id, text);
    parts.specials.push_back(std::move(special));
  }
  parts.vocab_size = static_cast<std::int64_t>(parts.tokens.size());
  return parts;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tiktoken(const TiktokenOptions& options) {
  require_user(options.vocab_size >= 0, "a vocab_size of {} is no number of tokens; 0 means the default",
               options.vocab_size);
  if (options.model.extension() == ".json")
    return std::make_unique<TiktokenTokenizer>(parts_of_json(options),
                                               options.pattern.empty() ? "v2" : options.pattern);
  return std::make_unique<TiktokenTokenizer>(parts_of_lines(options), options.pattern);
}

}  // namespace tera
