#include "tera/tokenizer/huggingface/hugging_face_parts.h"

#include <algorithm>
#include <unordered_map>

#include "tera/base/error.h"
#include "tera/tokenizer/bpe/byte_level.h"
#include "tera/tokenizer/huggingface/normalize_steps.h"
#include "tera/tokenizer/huggingface/pre_token_steps.h"
#include "tera/tokenizer/huggingface/pre_tokenizers.h"
#include "tera/tokenizer/huggingface/token_json.h"
#include "tera/tokenizer/sentencepiece/unigram.h"
#include "tera/tokenizer/unicode/unicode.h"
#include "tera/tokenizer/wordpiece/word_piece.h"

namespace tera {
namespace {

using Json = nlohmann::json;
using Steps = std::vector<PreTokenStep>;

const Json* part_of(const TokenizerFile& file, const char* name) {
  const auto it = file.parts.find(name);
  return it == file.parts.end() || it->is_null() ? nullptr : &*it;
}

bool is_regex_split(const PreTokenStep& step) {
  return step.kind == PreTokenKind::split && step.is_regex && step.behavior == SplitBehavior::isolated && !step.invert;
}

// The scanner that equals all steps together, before ByteLevel spells the bytes.
std::optional<SplitPattern> pattern_of(std::span<const PreTokenStep> steps) {
  const PreTokenStep& last = steps.back();
  const auto splits = steps.first(steps.size() - 1);
  if (splits.empty()) return last.use_regex ? std::optional(SplitPattern::gpt2) : std::nullopt;
  if (last.use_regex || last.add_prefix_space) return std::nullopt;
  // Known patterns match all of a text, so dropping the text between matches changes nothing.
  const PreTokenStep& only = splits.front();
  if (splits.size() == 1 && only.kind == PreTokenKind::split && only.is_regex && only.invert &&
      only.behavior == SplitBehavior::removed)
    return known_split_pattern(only.pattern, RegexDialect::oniguruma);
  if (!std::ranges::all_of(splits, is_regex_split)) return std::nullopt;
  std::vector<std::string> patterns;
  for (const PreTokenStep& step : splits) patterns.push_back(step.pattern);
  return known_split_pattern(patterns);
}

BpeData read_bpe(const TokenizerFile& file) {
  JsonFields fields(file.parts["model"], file.path_of("model"));
  BpeData data;
  data.tokens = file.tokens;
  data.merges = file.merges;
  data.ignore_merges = fields.flag("ignore_merges", false);
  data.byte_fallback = fields.flag("byte_fallback", false);
  data.fuse_unk = fields.flag("fuse_unk", false);
  data.continuing_subword_prefix = fields.text("continuing_subword_prefix", "");
  data.end_of_word_suffix = fields.text("end_of_word_suffix", "");
  if (const Json* dropout = fields.find("dropout"); dropout != nullptr && *dropout != 0)
    fail_user("{}: merging at random is not supported", fields.path_of("dropout"));
  if (const auto unk = fields.text_if("unk_token")) {
    const auto at = std::ranges::find(data.tokens, *unk);
    if (at != data.tokens.end() && !unk->empty())
      data.unk = static_cast<std::int32_t>(at - data.tokens.begin());
    else
      fail_user("{}: '{:.80}' is not a token of the vocabulary", fields.path_of("unk_token"), *unk);
  }
  fields.ignore("type");
  fields.finish();
  return data;
}

bool has_all_bytes(const std::vector<std::string>& tokens) {
  const TokenIndex ids(tokens);
  for (int byte = 0; byte < 256; ++byte)
    if (ids.find(to_byte_level(std::string(1, static_cast<char>(byte)))) < 0) return false;
  return true;
}

// Words reach the model as plain text where its tokens are only ever spelled by ByteLevel. What is said about unknown
// characters then has no meaning, unless a byte is unknown.
bool take_plain_bytes(const Steps& steps, BpeData& data) {
  if (steps.empty() || steps.back().kind != PreTokenKind::byte_level || !data.continuing_subword_prefix.empty() ||
      !data.end_of_word_suffix.empty())
    return false;
  if ((data.unk || data.byte_fallback) && !has_all_bytes(data.tokens)) return false;
  data.unk.reset();
  data.byte_fallback = data.fuse_unk = false;
  return true;
}

// Where the encoder can do the work of the normalizer, no copy of the text is needed; tokens that are searched for
// after the normalizer need that copy.
constexpr TextRule spaces_by_encoder{
    .spaces = SpaceRule{.split = false, .replace_all = true}, .prefix_space = true, .prefix_in_any_case = true};
constexpr TextRule spaces_by_normalizer{.spaces = SpaceRule{.split = false, .replace_all = false}};

TextRule bpe_rule(const Steps& steps, bool plain_bytes) {
  TextRule rule;
  if (plain_bytes) {
    rule.pattern = pattern_of(steps);
    rule.prefix_space = rule.pattern && steps.back().add_prefix_space;
  } else if (steps.empty()) {
    rule = spaces_by_normalizer;
  } else if (steps.size() == 1 && steps[0].kind == PreTokenKind::metaspace && steps[0].character == space_mark) {
    rule.spaces = SpaceRule{.split = steps[0].split, .replace_all = true};
    rule.prefix_space = steps[0].prepend != PrependScheme::never;
  }
  return rule;
}

void make_bpe(const TokenizerFile& file, const Steps& steps, TokenizerParts& parts) {
  BpeData data = read_bpe(file);
  data.byte_level = take_plain_bytes(steps, data);
  parts.rule = bpe_rule(steps, data.byte_level);
  if (!parts.rule.pattern && !parts.rule.spaces && !steps.empty())
    parts.pre_tokenizer = make_pre_tokenizer(steps, data.byte_level);
  try {
    parts.model = std::make_unique<BpeModel>(data);
  } catch (const UserError& error) {
    fail_user("{}: {}", file.path_of("model"), error.what());
  }
}

const Json& replaced_spaces() {
  static const Json replace{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", space_mark}};
  return replace;
}

// Llama 2's equivalent of Metaspace: a space mark before the text and in found of every space.
const Json& spaces_and_prefix() {
  static const Json prepend{{"type", "Prepend"}, {"prepend", space_mark}};
  static const Json both{{"type", "Sequence"}, {"normalizers", Json::array({prepend, replaced_spaces()})}};
  return both;
}

// Gemma cuts at spaces, of which its normalizer leaves none.
bool cuts_nothing(const Steps& steps, const Json* normalizer) {
  return steps.size() == 1 && steps[0].kind == PreTokenKind::split && !steps[0].is_regex && steps[0].pattern == " " &&
         !steps[0].invert && normalizer != nullptr && *normalizer == replaced_spaces();
}

bool none_normalized(const TokenizerParts& parts) {
  return std::ranges::none_of(parts.added, [](const AddedToken& token) { return token.normalized; });
}

void read_normalizer(const TokenizerFile& file, const Json* value, TokenizerParts& parts) {
  if (value == nullptr || *value == Json{{"type", "Sequence"}, {"normalizers", Json::array()}}) return;
  if (parts.rule.spaces && !parts.rule.spaces->replace_all && none_normalized(parts) && *value == spaces_and_prefix())
    parts.rule = spaces_by_encoder;
  else
    parts.normalizer = make_normalizer(*value, file.path_of("normalizer"));
}

// Tokens added later may need the normalizer.
void keep_normalizer(TokenizerParts& parts) {
  if (!parts.rule.prefix_in_any_case || none_normalized(parts)) return;
  parts.rule = spaces_by_normalizer;
  parts.normalizer = make_normalizer(spaces_and_prefix(), "normalizer");
}

void make_word_piece(const TokenizerFile& file, TokenizerParts& parts) {
  JsonFields fields(file.parts["model"], file.path_of("model"));
  WordPieceOptions options{.unk_token = fields.text("unk_token"),
                           .continuing_subword_prefix = fields.text("continuing_subword_prefix")};
  options.max_input_chars_per_word = static_cast<std::size_t>(fields.unsigned_integer("max_input_chars_per_word"));
  fields.ignore("type");
  fields.finish();
  std::vector<WordPiece::Entry> vocab;
  for (std::size_t id = 0; id < file.tokens.size(); ++id)
    if (!file.tokens[id].empty()) vocab.emplace_back(file.tokens[id], static_cast<std::int32_t>(id));
  parts.model = std::make_unique<WordPiece>(vocab, std::move(options));
}

void make_unigram(const TokenizerFile& file, TokenizerParts& parts) {
  JsonFields fields(file.parts["model"], file.path_of("model"));
  UnigramOptions options{.byte_fallback = fields.flag("byte_fallback", false)};
  const std::int64_t unk = fields.unsigned_integer("unk_id", -1);
  require_user(unk < std::ssize(file.tokens), "{}: {} is not an id of the vocabulary, which has {}",
               fields.path_of("unk_id"), unk, file.tokens.size());
  options.unk_id = static_cast<std::int32_t>(unk);
  fields.ignore("type");
  fields.finish();
  require_user(!file.tokens.empty(), "{}: no tokens", file.path_of("model.vocab"));
  std::vector<Unigram::Entry> vocab;
  for (std::size_t id = 0; id < file.tokens.size(); ++id) vocab.emplace_back(file.tokens[id], file.scores[id]);
  parts.model = std::make_unique<Unigram>(vocab, options);
}

// Files without a `type` are recognised by their fields.
std::string model_type(const TokenizerFile& file) {
  JsonFields fields(file.parts["model"], file.path_of("model"));
  if (const auto type = fields.text_if("type")) return *type;
  if (!file.scores.empty()) return "Unigram";
  return file.parts["model"].contains("continuing_subword_prefix") && file.merges.empty() ? "WordPiece" : "BPE";
}

void make_model(const TokenizerFile& file, const Steps& steps, TokenizerParts& parts) {
  const std::string type = model_type(file);
  const bool scored = type == "Unigram";
  require_user(type == "BPE" || type == "WordPiece" || scored,
               "{}: models of type '{:.80}' are not supported; there are BPE, WordPiece and Unigram",
               file.path_of("model.type"), type);
  require_user(scored != file.scores.empty(), "{}: {} was expected for {}", file.path_of("model.vocab"),
               scored ? "a list of tokens with scores" : "an object of tokens and ids", type);
  if (type == "BPE") return make_bpe(file, steps, parts);
  if (scored)
    make_unigram(file, parts);
  else
    make_word_piece(file, parts);
  if (!steps.empty()) parts.pre_tokenizer = make_pre_tokenizer(steps, /*plain_bytes=*/false);
}

std::vector<AddedToken> read_added_tokens(const TokenizerFile& file) {
  std::vector<AddedToken> tokens;
  const auto list = file.parts.find("added_tokens");
  if (list == file.parts.end()) return tokens;
  const std::string path = file.path_of("added_tokens");
  if (!list->is_array()) fail_json(path, "a list", *list);
  for (std::size_t i = 0; i < list->size(); ++i) {
    JsonFields fields((*list)[i], item_path(path, i));
    const std::int64_t id = fields.unsigned_integer("id");
    require_user(id < max_token_ids, "{}: not below {}", fields.path_of("id"), max_token_ids);
    tokens.push_back({.content = fields.text("content"),
                      .single_word = fields.flag("single_word"),
                      .lstrip = fields.flag("lstrip"),
                      .rstrip = fields.flag("rstrip"),
                      .normalized = fields.flag("normalized"),
                      .special = fields.flag("special")});
    fields.finish();
  }
  return tokens;
}

// The ids that the post-processor adds must exist.
void check_added_ids(const TokenizerParts& parts, const std::string& path) {
  std::int64_t ids = std::ssize(parts.tokens);
  for (const AddedToken& token : parts.added) ids = std::max<std::int64_t>(ids, token.id + 1);
  for (const auto* list : {&parts.post_processor.before, &parts.post_processor.after})
    for (const std::int32_t id : *list)
      require_user(id < ids, "{}: adds the id {}, and the vocabulary ends at {}", path, id, ids - 1);
}

}  // namespace

std::int32_t id_of_token(const TokenizerParts& parts, std::string_view content) {
  if (content.empty()) return -1;
  const auto added = std::ranges::find(parts.added, content, &AddedToken::content);
  if (added != parts.added.end()) return added->id;
  const auto at = std::ranges::find(parts.tokens, content);
  return at == parts.tokens.end() ? -1 : static_cast<std::int32_t>(at - parts.tokens.begin());
}

void add_tokens(TokenizerParts& parts, std::span<const AddedToken> tokens) {
  const TokenIndex ids(parts.tokens);
  std::int32_t next = static_cast<std::int32_t>(parts.vocab_count);
  for (const AddedToken& token : parts.added) next = std::max(next, token.id + 1);
  std::unordered_map<std::string, std::size_t> index_of;
  for (std::size_t i = 0; i < parts.added.size(); ++i) index_of[parts.added[i].content] = i;
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    if (const auto found = index_of.find(token.content); found != index_of.end()) {
      AddedToken& known = parts.added[found->second];
      const std::int32_t id = known.id;
      known = token;
      known.id = id;
      continue;
    }
    AddedToken added = token;
    const std::int32_t model_id = ids.find(token.content);
    added.id = model_id < 0 ? next++ : model_id;
    index_of[token.content] = parts.added.size();
    parts.added.push_back(std::move(added));
  }
}

TokenizerParts assemble_tokenizer(TokenizerFile file) {
  const Json* version = part_of(file, "version");
  require_user(version == nullptr || *version == "1.0", "{}: only version 1.0 is known", file.path_of("version"));
  TokenizerParts parts;
  parts.vocab_count = file.vocab_count;
  parts.tokens = file.tokens;
  add_tokens(parts, read_added_tokens(file));
  const Json *pre_tokenizer = part_of(file, "pre_tokenizer"), *post_processor = part_of(file, "post_processor"),
             *decoder = part_of(file, "decoder");
  Steps steps;
  if (pre_tokenizer != nullptr) steps = read_pre_tokenizer(*pre_tokenizer, file.path_of("pre_tokenizer"));
  const Json* normalizer = part_of(file, "normalizer");
  if (cuts_nothing(steps, normalizer)) steps.clear();
  make_model(file, steps, parts);
  parts.rule.prefix_only_at_start = std::ranges::any_of(steps, [](const PreTokenStep& step) {
    return step.kind == PreTokenKind::metaspace && step.prepend == PrependScheme::first;
  });
  read_normalizer(file, normalizer, parts);
  if (post_processor != nullptr) {
    parts.post_processor = read_post_processor(*post_processor, file.path_of("post_processor"));
    check_added_ids(parts, file.path_of("post_processor"));
  }
  if (decoder != nullptr) parts.decoder = make_decoder(*decoder, file.path_of("decoder"));
  return parts;
}

void apply_config(TokenizerParts& parts, const SpecialTokensConfig& config) {
  add_tokens(parts, config.listed);
  const auto add_missing = [&](const AddedToken& token) {
    if (std::ranges::find(parts.added, token.content, &AddedToken::content) == parts.added.end())
      add_tokens(parts, std::span(&token, 1));
  };
  for (const auto& token : config.named)
    if (token) add_missing(*token);
  for (const AddedToken& token : config.extra) add_missing(token);
  keep_normalizer(parts);
}

void name_special_ids(TokenizerParts& parts, const SpecialTokensConfig& config) {
  const auto id_of = [&](SpecialRole role) { return config[role] ? id_of_token(parts, config[role]->content) : -1; };
  parts.bos = id_of(SpecialRole::bos);
  parts.pad = id_of(SpecialRole::pad);
  parts.unk = id_of(SpecialRole::unk);
  parts.eod = config[SpecialRole::eos] ? id_of(SpecialRole::eos) : id_of(SpecialRole::sep);
}

}  // namespace tera
