#include "tera/tokenizer/huggingface/decoders.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "tera/base/error.h"
#include "tera/base/utf8.h"
#include "tera/tokenizer/bpe/byte_level.h"
#include "tera/tokenizer/huggingface/normalize_steps.h"
#include "tera/tokenizer/huggingface/pre_token_steps.h"
#include "tera/tokenizer/huggingface/token_json.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

using Json = nlohmann::json;
using Tokens = std::vector<std::string>;

constexpr std::string_view no_utf8 = "\xef\xbf\xbd";  // U+FFFD

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

std::string join(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

// Cleans up English spacing: no space before a full stop, none inside contractions.
void clean_up(std::string& text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> rules{{{" .", "."},
                                                                                 {" ?", "?"},
                                                                                 {" !", "!"},
                                                                                 {" ,", ","},
                                                                                 {" ' ", "'"},
                                                                                 {" n't", "n't"},
                                                                                 {" 'm", "'m"},
                                                                                 {" do not", " don't"},
                                                                                 {" 's", "'s"},
                                                                                 {" 've", "'ve"},
                                                                                 {" 're", "'re"}}};
  for (const auto& [from, to] : rules) replace_all(text, from, to);
}

class ByteLevelDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) bytes += from_byte_level(token).value_or(token);
    tokens = {mend_utf8(bytes)};
  }
};

class MetaspaceDecoder final : public Decoder {
 public:
  explicit MetaspaceDecoder(MetaspaceOptions options) : options_(std::move(options)) {}
  void apply(Tokens& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool first = i == 0 && options_.prepend != PrependScheme::never;
      replace_all(tokens[i], options_.character, first ? "" : " ");
    }
  }

 private:
  MetaspaceOptions options_;
};

class WordPieceDecoder final : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(Tokens& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i].starts_with(prefix_))
        tokens[i].erase(0, prefix_.size());
      else if (i > 0)
        tokens[i].insert(0, 1, ' ');
      if (cleanup_) clean_up(tokens[i]);
    }
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

class SuffixDecoder final : public Decoder {  // BPEDecoder
 public:
  explicit SuffixDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(Tokens& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
  }

 private:
  std::string suffix_;
};

// <0x61> is a byte; neighbouring ones are a text if they are UTF-8 together.
class ByteFallbackDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens) const override {
    Tokens out;
    std::string bytes;
    const auto end_bytes = [&] {
      if (bytes.empty()) return;
      if (valid_utf8_prefix(bytes) == bytes.size())
        out.push_back(bytes);
      else
        out.insert(out.end(), bytes.size(), std::string(no_utf8));
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = byte_of(token)) {
        bytes += *byte;
        continue;
      }
      end_bytes();
      out.push_back(std::move(token));
    }
    end_bytes();
    tokens = std::move(out);
  }

 private:
  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
    // As Rust reads it, a sign before a single digit is a number too.
    std::string_view digits = token.substr(3, 2);
    if (digits[0] == '+') digits.remove_prefix(1);
    unsigned value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
    return static_cast<char>(static_cast<unsigned char>(value));
  }
};

class FuseDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens) const override { tokens = {join(tokens)}; }
};

// Strips a character from both ends, at most so many times.
class StripDecoder final : public Decoder {
 public:
  StripDecoder(std::string character, std::int64_t start, std::int64_t stop)
      : character_(std::move(character)), start_(start), stop_(stop) {}
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view kept = token;
      for (std::int64_t i = 0; i < start_ && kept.starts_with(character_); ++i) kept.remove_prefix(character_.size());
      for (std::int64_t i = 0; i < stop_ && kept.ends_with(character_); ++i) kept.remove_suffix(character_.size());
      token = std::string(kept);
    }
  }

 private:
  std::string character_;
  std::int64_t start_, stop_;
};

class CtcDecoder final : public Decoder {
 public:
  CtcDecoder(std::string pad, std::string delimiter, bool cleanup)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  void apply(Tokens& tokens) const override {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (std::string& token : tokens) {
      replace_all(token, pad_, "");
      if (!cleanup_) continue;
      clean_up(token);
      replace_all(token, delimiter_, " ");
    }
    std::erase_if(tokens, [](const std::string& token) { return token.empty(); });
  }

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
};

class ReplaceDecoder final : public Decoder {
 public:
  explicit ReplaceDecoder(std::unique_ptr<Normalizer> replace) : replace_(std::move(replace)) {}
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) replace_->apply(token);
  }

 private:
  std::unique_ptr<Normalizer> replace_;
};

class DecoderChain final : public Decoder {
 public:
  void add(std::unique_ptr<Decoder> step) { steps_.push_back(std::move(step)); }
  void apply(Tokens& tokens) const override {
    for (const auto& step : steps_) step->apply(tokens);
  }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

std::unique_ptr<Decoder> make_chain(JsonFields& fields) {
  auto chain = std::make_unique<DecoderChain>();
  const Json& list = fields.list("decoders");
  for (std::size_t i = 0; i < list.size(); ++i)
    chain->add(make_decoder(list[i], item_path(fields.path_of("decoders"), i)));
  return chain;
}

std::string not_empty(JsonFields& fields, const char* key) {
  std::string text = fields.text(key);
  require_user(!text.empty(), "{}: an empty text", fields.path_of(key));
  return text;
}

std::unique_ptr<Decoder> make_byte_level(JsonFields& fields) {
  for (const char* unused : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.ignore(unused);
  return std::make_unique<ByteLevelDecoder>();
}

std::unique_ptr<Decoder> make_one(JsonFields& fields, const std::string& type) {
  if (type == "Sequence") return make_chain(fields);
  if (type == "ByteLevel") return make_byte_level(fields);
  if (type == "WordPiece") return std::make_unique<WordPieceDecoder>(fields.text("prefix"), fields.flag("cleanup"));
  if (type == "BPEDecoder") return std::make_unique<SuffixDecoder>(not_empty(fields, "suffix"));
  if (type == "ByteFallback") return std::make_unique<ByteFallbackDecoder>();
  if (type == "Fuse") return std::make_unique<FuseDecoder>();
  if (type == "Strip")
    return std::make_unique<StripDecoder>(fields.character("content"), fields.unsigned_integer("start"),
                                          fields.unsigned_integer("stop"));
  if (type == "CTC")
    return std::make_unique<CtcDecoder>(not_empty(fields, "pad_token"), not_empty(fields, "word_delimiter_token"),
                                        fields.flag("cleanup"));
  fail_user(
      "{}: decoders of type '{:.80}' are not supported; there are ByteLevel, Metaspace, WordPiece, BPEDecoder, "
      "ByteFallback, Fuse, Strip, Replace, CTC and Sequence",
      fields.path_of("type"), type);
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(const Json& value, const std::string& path) {
  JsonFields fields(value, path);
  const std::string type = fields.text("type");
  if (type == "Metaspace") return std::make_unique<MetaspaceDecoder>(read_metaspace(value, path));
  if (type == "Replace") return std::make_unique<ReplaceDecoder>(make_normalizer(value, path));
  auto decoder = make_one(fields, type);
  fields.finish();
  return decoder;
}

}  // namespace tera
