// tokenizer.json against what `tokenizers` made of the same files (tools/reference/dump_tokenizers.py), and files that
// are wrong.

#include "tera/tokenizer/huggingface/hugging_face.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tera/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera {
namespace {

using nlohmann::json;
using test::contains;
using test::message_of;
using test::TempFolder;
using Ids = std::vector<std::int32_t>;
namespace fs = std::filesystem;

const fs::path golden = test::source_path("tests/golden/tokenizer");

Ids encode(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::unique_ptr<HuggingFaceTokenizer> load(const fs::path& path, bool special = true) {
  return HuggingFaceTokenizer::load(path, special);
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, EncodesAndDecodesAsTheReference) {
  const auto tokenizer = load(golden / (std::string(GetParam()) + ".json"));
  const auto encoder = tokenizer->make_encoder();
  std::ifstream lines(golden / (std::string(GetParam()) + ".jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json expected = json::parse(line);
    const auto text = expected["text"].get<std::string>();
    Ids ids;
    encoder->encode(text, ids);
    EXPECT_EQ(ids, expected["ids"].get<Ids>()) << expected["text"];
    EXPECT_EQ(tokenizer->decode(expected["ids"].get<Ids>()), expected["decoded"].get<std::string>())
        << expected["text"];
  }
  EXPECT_GT(count, 50);
}

INSTANTIATE_TEST_SUITE_P(All, Golden,
                         testing::Values("byte_level", "llama3", "spaced", "metaspace", "word_piece", "unigram",
                                         "mixed"),
                         [](const auto& test_case) { return std::string(test_case.param); });

TEST(HuggingFace, LeavesOutWhatThePostProcessorAdds) {
  const Ids with = encode(*load(golden / "llama3.json"), "Hello"),
            without = encode(*load(golden / "llama3.json", false), "Hello");
  ASSERT_EQ(with.size(), without.size() + 1);
  EXPECT_EQ(Ids(with.begin() + 1, with.end()), without);
  EXPECT_EQ(encode(*load(golden / "llama3.json", false), ""), Ids{});
}

// Metaspace that marks only the beginning of the text, after normalizers that change the beginning.
TEST(HuggingFace, KnowsWhereTextBeginsAsTheReference) {
  const json all = json::parse(std::ifstream(golden / "first_place.json"));
  const TempFolder folder;
  int marked = 0, unmarked = 0;
  for (const json& test_case : all["cases"]) {
    json file = all["file"];
    file["normalizer"] = test_case["normalizer"];
    file["pre_tokenizer"] = test_case["pre_tokenizer"];
    folder.write("tokenizer.json", file.dump());
    const auto tokenizer = load(folder / "tokenizer.json");
    const auto encoder = tokenizer->make_encoder();
    for (std::size_t i = 0; i < all["texts"].size(); ++i) {
      Ids ids;
      encoder->encode(all["texts"][i].get<std::string>(), ids);
      EXPECT_EQ(ids, test_case["ids"][i].get<Ids>())
          << all["texts"][i] << " by " << test_case["normalizer"] << " and " << test_case["pre_tokenizer"];
      if (!ids.empty()) ++(tokenizer->decode(Ids{ids[0]}) == "\u2581" ? marked : unmarked);
    }
  }
  EXPECT_GT(marked, 100);
  EXPECT_GT(unmarked, 100);
}

// A small file that is right, to be made wrong.
json small_file() {
  json vocab = json::object();
  for (const char c : std::string("abcdefgh <>")) vocab[std::string(1, c)] = vocab.size();
  vocab["ab"] = vocab.size();
  return {{"version", "1.0"},
          {"truncation", {{"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}, {"direction", "Right"}}},
          {"padding", nullptr},
          {"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array({"a b"})}}}};
}

json added(const std::string& content, json more = json::object()) {
  json token{{"id", 20},        {"content", content},  {"single_word", false}, {"lstrip", false},
             {"rstrip", false}, {"normalized", false}, {"special", true}};
  token.update(more);
  return token;
}

class SmallFile : public testing::Test {
 protected:
  std::unique_ptr<HuggingFaceTokenizer> make(const json& file) {
    folder_.write("t/tokenizer.json", file.dump());
    return load(folder_ / "t/tokenizer.json");
  }
  std::string refusal(const json& file) {
    const std::string message = message_of<UserError>([&] { make(file); });
    EXPECT_TRUE(contains(message, "tokenizer.json")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  std::string refusal_of_text(const std::string& text) {
    folder_.write("t/tokenizer.json", text);
    return message_of<UserError>([&] { load(folder_ / "t/tokenizer.json"); });
  }

  TempFolder folder_;
  json file_ = small_file();
};

TEST_F(SmallFile, BothFormsOfMergesAndNoTruncation) {
  const Ids expected{11, 2, 0};
  EXPECT_EQ(encode(*make(file_), "abca"), expected);
  file_["model"]["merges"] = json::array({json::array({"a", "b"})});
  EXPECT_EQ(encode(*make(file_), "abca"), expected);
  EXPECT_EQ(make(file_)->decode(expected), "ab c a");
  EXPECT_EQ(make(file_)->decode(Ids{0, 999, -1, 1}), "a b");  // ids that are no tokens
}

// Ids are given as `tokenizers` gives them, whatever the file says about tokens that the model does not have.
TEST_F(SmallFile, AddedTokensGetTheIdsOfTheReference) {
  file_["added_tokens"] = {added("<x>", {{"id", 50}}), added("<y>", {{"id", 20}}), added("a", {{"id", 3}})};
  const auto tokenizer = make(file_);
  EXPECT_EQ(encode(*tokenizer, "<x><y>ab"), (Ids{12, 13, 0, 1}));
  EXPECT_EQ(tokenizer->vocab_size(), 14);
  file_["model"]["vocab"] = {{"a", 0}, {"b", 5}};
  file_["model"]["merges"] = json::array();
  EXPECT_EQ(encode(*make(file_), "<x>b"), (Ids{2, 5}));
  EXPECT_EQ(make(file_)->vocab_size(), 6);
}

TEST_F(SmallFile, AddedTokensTakeTheLongestAndTheirSpaces) {
  file_["added_tokens"] = {added("<x>"), added("<x><y>"), added("c", {{"single_word", true}}),
                           added("<l>", {{"lstrip", true}}), added("<r>", {{"rstrip", true}})};
  const auto tokenizer = make(file_);
  EXPECT_EQ(encode(*tokenizer, "<x><y><x>"), (Ids{13, 12}));
  EXPECT_EQ(encode(*tokenizer, "<x><"), (Ids{12, 9}));
  EXPECT_EQ(encode(*tokenizer, "ac c\u00e9 c"), (Ids{0, 2, 8, 2, 8, 2}));
  EXPECT_EQ(encode(*tokenizer, "a \t<l> <r>\u00a0 b"), (Ids{0, 14, 8, 15, 1}));
  EXPECT_EQ(encode(*tokenizer, "<r> <l>"), (Ids{15, 14}));
}

// What `tokenizers` does with such tokens is by chance, or cuts text everywhere.
TEST_F(SmallFile, RefusesAddedTokensThatTheNormalizerSpoils) {
  const json after_normalizer{{"normalized", true}};
  file_["normalizer"] = {{"type", "Lowercase"}};
  file_["added_tokens"] = {added("<X>", after_normalizer), added("<x>", after_normalizer)};
  EXPECT_TRUE(contains(refusal(file_), "added_tokens: '<X>' and '<x>' are the same behind the normalizer"));
  file_["added_tokens"] = {added("<X>", after_normalizer), added("<x>")};
  EXPECT_EQ(encode(*make(file_), "<x>a<X>"), (Ids{13, 0, 12}));
  file_["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  file_["added_tokens"] = {added("  ", after_normalizer)};
  EXPECT_TRUE(contains(refusal(file_), "added_tokens: the normalizer leaves nothing of '  '"));
}

TEST_F(SmallFile, RefusesTextThatTheNormalizerMakesTooLong) {
  file_["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1 << 20, 'b')}};
  const auto tokenizer = make(file_);
  const std::string message = message_of<UserError>([&] { encode(*tokenizer, std::string(5000, 'a')); });
  EXPECT_TRUE(contains(message, "the normalizer makes more than 1073741824 bytes")) << message;
}

// Each step may make a text several times as long; the error comes before the memory is allocated.
TEST_F(SmallFile, RefusesTextThatThePreTokenizerMakesTooLong) {
  const auto refuses = [&](const json& step, const std::string& text) {
    file_["pre_tokenizer"] = step;
    const auto tokenizer = make(file_);
    const std::string message = message_of<UserError>([&] { encode(*tokenizer, text); });
    EXPECT_TRUE(contains(message, "the pre-tokenizer makes more than 1073741824 bytes")) << message;
  };
  const std::size_t size = std::size_t{300} << 20;
  refuses({{"type", "Metaspace"}, {"replacement", "\U0001f600"}, {"prepend_scheme", "first"}, {"split", false}},
          std::string(size, ' '));
}

TEST_F(SmallFile, RefusesModelsThatAreWrong) {
  const auto with_model = [&](const char* key, json value) {
    json file = file_;
    file["model"][key] = std::move(value);
    return refusal(file);
  };
  EXPECT_TRUE(contains(with_model("type", "WordLevel"), "model.type"));
  EXPECT_TRUE(contains(with_model("dropout", 0.1), "model.dropout"));
  EXPECT_TRUE(contains(with_model("surprise", 1), "model.surprise"));
  EXPECT_TRUE(contains(with_model("unk_token", "zz"), "model.unk_token"));
  EXPECT_TRUE(contains(with_model("ignore_merges", "yes"), "model.ignore_merges"));
  EXPECT_TRUE(contains(with_model("vocab", 1), "model.vocab"));
  EXPECT_TRUE(contains(with_model("vocab", {{"a", 0}, {"b", 0}}), "same id 0"));
  EXPECT_TRUE(contains(with_model("vocab", {{"a", -1}}), "the id of 'a'"));
  EXPECT_TRUE(contains(with_model("vocab", {{"a", 2147483647}}), "the id of 'a'"));
  EXPECT_TRUE(contains(with_model("vocab", {{"a", 1.5}}), "the id of 'a'"));
  EXPECT_TRUE(contains(with_model("vocab", {{"a", 9'000'000}}), "too far apart"));
  EXPECT_TRUE(contains(with_model("merges", {"ab"}), "model.merges[0]"));
  EXPECT_TRUE(contains(with_model("merges", {"a b", "a  b"}), "model.merges[1]"));
  EXPECT_TRUE(contains(with_model("merges", json::array({json::array({"a", "z"})})), "'z' is not a token"));
  EXPECT_TRUE(contains(with_model("merges", json::array({json::array({"a", "c"})})), "ac"));
  EXPECT_TRUE(contains(with_model("merges", {1}), "model.merges[0]"));
  file_["model"].erase("vocab");
  EXPECT_TRUE(contains(refusal(file_), "model.vocab is missing"));
  file_.erase("model");
  EXPECT_TRUE(contains(refusal(file_), "model is missing"));
}

TEST_F(SmallFile, RefusesWhatItDoesNotHaveAndNamesIt) {
  const auto with = [&](const char* part, json value) {
    json file = file_;
    file[part] = std::move(value);
    return refusal(file);
  };
  EXPECT_TRUE(contains(with("version", "2.0"), "version"));
  EXPECT_TRUE(contains(with("pre_tokeniser", {{"type", "Whitespace"}}), "tokenizer.json: pre_tokeniser is not known"));
  EXPECT_TRUE(contains(with("post_processors", nullptr), "post_processors is not known"));
  EXPECT_TRUE(contains(with("normalizer", {{"type", "Magic"}}), "Magic"));
  EXPECT_TRUE(contains(with("pre_tokenizer", {{"type", "UnicodeScripts"}}), "pre_tokenizer.type"));
  EXPECT_TRUE(contains(with("pre_tokenizer", {{"type", "Digits"}}), "pre_tokenizer.individual_digits is missing"));
  EXPECT_TRUE(contains(with("pre_tokenizer", {{"type", "Whitespace"}, {"new", 1}}), "pre_tokenizer.new"));
  EXPECT_TRUE(contains(with("pre_tokenizer", json::array()), "an object was expected"));
  const json nested{{"type", "Sequence"}, {"pretokenizers", {{{"type", "Whitespace"}}, {{"type", "Nothing"}}}}};
  EXPECT_TRUE(contains(with("pre_tokenizer", nested), "pre_tokenizer.pretokenizers[1].type"));
  const json bad_regex{{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}, {"invert", false}};
  EXPECT_TRUE(contains(with("pre_tokenizer", bad_regex), "pre_tokenizer.pattern"));
  EXPECT_TRUE(contains(with("pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}), "one character"));
  EXPECT_TRUE(contains(with("decoder", {{"type", "Magic"}}), "decoder.type"));
  EXPECT_TRUE(contains(with("decoder", {{"type", "Strip"}, {"content", "a"}, {"start", -1}, {"stop", 0}}), "start"));
  EXPECT_TRUE(contains(with("post_processor", {{"type", "Magic"}}), "post_processor.type"));
  EXPECT_TRUE(contains(with("post_processor", {{"type", "BertProcessing"}, {"sep", {"a", "b"}}, {"cls", {"c", 1}}}),
                       "post_processor.sep[1]"));
  EXPECT_TRUE(contains(with("post_processor", {{"type", "BertProcessing"}, {"sep", {"a", 99}}, {"cls", {"c", 1}}}),
                       "post_processor: adds the id 99"));
  json pieces = json::array({{{"SpecialToken", {{"id", "x"}, {"type_id", 0}}}}});
  json post{{"type", "TemplateProcessing"}, {"single", pieces}, {"pair", pieces}, {"special_tokens", json::object()}};
  EXPECT_TRUE(contains(with("post_processor", post), "post_processor.single[0].SpecialToken.id"));
  post["single"] = json::array();
  EXPECT_TRUE(contains(with("post_processor", post), "post_processor.single"));
  EXPECT_TRUE(
      contains(with("added_tokens", {{{"id", 1}, {"content", "x"}}}), "added_tokens[0].single_word is missing"));
  EXPECT_TRUE(contains(with("added_tokens", {added("x", {{"id", 1e12}})}), "added_tokens[0].id"));
}

// Readers differ in which of two values they use, and so would the ids.
TEST_F(SmallFile, RefusesFieldsThatAreThereTwice) {
  const std::string text = file_.dump();
  const auto twice = [&](const std::string& before, const std::string& more) {
    const std::size_t at = text.find(before);
    EXPECT_NE(at, std::string::npos) << before;
    return refusal_of_text(text.substr(0, at) + more + "," + text.substr(at));
  };
  for (const auto& [part, value] : file_.items())
    EXPECT_TRUE(contains(twice("\"version\":", "\"" + part + "\":" + value.dump()),
                         "tokenizer.json: '" + part + "' is there twice"))
        << part;
  for (const auto& [field, value] : file_["model"].items())
    EXPECT_TRUE(contains(twice("\"merges\":", "\"" + field + "\":" + value.dump()),
                         "tokenizer.json: model: '" + field + "' is there twice"))
        << field;
  EXPECT_TRUE(
      contains(twice("\"merges\":", R"("unk_token":"a","unk_token":"b")"), "model: 'unk_token' is there twice"));
  file_["normalizer"] = {{"type", "NFC"}};
  std::string nested = file_.dump();
  nested.insert(nested.find("\"type\":\"NFC\""), "\"type\":\"Lowercase\",");
  EXPECT_TRUE(contains(refusal_of_text(nested), "normalizer: 'type' is there twice"));
}

TEST_F(SmallFile, RefusesTruncationAndPaddingThatTheReferenceCannotRead) {
  const json truncation = file_["truncation"];
  const json padding{
      {"strategy", "BatchLongest"}, {"direction", "Left"}, {"pad_to_multiple_of", nullptr}, {"pad_id", 0},
      {"pad_type_id", 0},           {"pad_token", "a"}};
  const auto with = [&](const char* part, json whole, const char* field, json value) {
    json file = file_;
    whole[field] = std::move(value);
    file[part] = std::move(whole);
    return refusal(file);
  };
  file_["padding"] = padding;
  EXPECT_NO_THROW(make(file_));
  file_["padding"]["strategy"] = {{"Fixed", 8}};
  file_["truncation"].erase("direction");
  EXPECT_NO_THROW(make(file_));
  EXPECT_TRUE(contains(with("truncation", truncation, "max_length", -1), "truncation.max_length"));
  EXPECT_TRUE(contains(with("truncation", truncation, "strategy", "x"), "truncation.strategy is 'x'"));
  EXPECT_TRUE(contains(with("truncation", truncation, "stride", nullptr), "truncation.stride is missing"));
  EXPECT_TRUE(contains(with("truncation", truncation, "direction", nullptr), "truncation.direction"));
  EXPECT_TRUE(contains(with("padding", padding, "strategy", "Fixed"), "padding.strategy"));
  EXPECT_TRUE(contains(with("padding", padding, "pad_id", "0"), "padding.pad_id"));
  EXPECT_TRUE(contains(with("padding", padding, "pad_token", 0), "padding.pad_token"));
  for (const char* part : {"truncation", "padding", "added_tokens"}) {
    json file = file_;
    file[part] = 7;
    EXPECT_TRUE(contains(refusal(file), "tokenizer.json: " + std::string(part) + ": ")) << part;
  }
  file_["added_tokens"] = nullptr;
  EXPECT_TRUE(contains(refusal(file_), "added_tokens: a list was expected, not null"));
}

TEST_F(SmallFile, RefusesFilesThatAreNoJson) {
  EXPECT_TRUE(contains(refusal_of_text(""), "not JSON"));
  EXPECT_TRUE(contains(refusal_of_text("{\"model\": "), "not JSON"));
  EXPECT_TRUE(contains(refusal_of_text("[1]"), "an object was expected"));
  EXPECT_TRUE(contains(refusal_of_text(std::string(100'000, '[')), "nested more than 64 deep"));
  EXPECT_TRUE(contains(refusal_of_text("{\"model\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
                       "nested more than 64 deep"));
  EXPECT_TRUE(contains(refusal_of_text("{\"model\":{\"vocab\":{\"\xff\":1}}}"), "not JSON"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { load(folder_ / "none"); }), "no such file"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { load(folder_.path()); }), "no tokenizer.json in this folder"));
}

TEST_F(SmallFile, SpecialTokensComeFromTheFilesBesideIt) {
  file_["added_tokens"] = {added("</s>"), added("<a>")};
  EXPECT_EQ(make(file_)->eod(), 12);  // by its name alone
  folder_.write("t/tokenizer_config.json",
                R"({"eos_token": "<a>", "bos_token": {"content": "b", "__type": "AddedToken"},
    "unk_token": null, "pad_token": "new", "add_bos_token": true,
    "model_max_length": 1000000000000000019884624838656})");
  const auto alone = make(file_);
  EXPECT_EQ(alone->eod(), 13);
  EXPECT_EQ(alone->bos(), 1);
  EXPECT_EQ(alone->unk(), -1);
  EXPECT_EQ(alone->pad(), -1);
  EXPECT_EQ(encode(*alone, "a"), (Ids{0}));
  // The folder is what transformers would make of it: missing tokens are added. Its add_bos_token does nothing where
  // there is a tokenizer.json.
  const auto whole = load(folder_ / "t");
  EXPECT_EQ(whole->pad(), 14);
  EXPECT_EQ(whole->vocab_size(), 15);
  EXPECT_EQ(encode(*whole, "anewb"), (Ids{0, 14, 1}));  // b is a special token now, with its old id
}

TEST_F(SmallFile, TheOlderMapAndSepInPlaceOfEos) {
  file_["added_tokens"] = {added("[SEP]"), added("[PAD]")};
  folder_.write("t/tokenizer_config.json", R"({"sep_token": "nothing", "added_tokens": 1})");
  folder_.write("t/special_tokens_map.json", R"({"sep_token": "[SEP]", "pad_token": {"content": "[PAD]"}})");
  EXPECT_EQ(make(file_)->eod(), 12);
  EXPECT_EQ(make(file_)->pad(), 13);
  folder_.write("t/special_tokens_map.json", R"({"sep_token": 3})");
  EXPECT_TRUE(contains(message_of<UserError>([&] { make(file_); }), "special_tokens_map.json: sep_token"));
  folder_.write("t/special_tokens_map.json", std::string(100'000, '['));
  EXPECT_TRUE(contains(message_of<UserError>([&] { make(file_); }), "special_tokens_map.json"));
}

TEST(LegacyTokenizers, Gpt2FromVocabAndMerges) {
  const json file = json::parse(std::ifstream(golden / "llama3.json"));
  TempFolder folder;
  json vocab = file["model"]["vocab"];
  vocab["<|endoftext|>"] = vocab.size();
  folder.write("vocab.json", vocab.dump());
  std::string merges = "#version: 0.2\n";
  for (const json& merge : file["model"]["merges"])
    merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  folder.write("merges.txt", merges);
  const auto tokenizer = HuggingFaceTokenizer::load_gpt2(folder / "vocab.json", folder / "merges.txt", true);
  EXPECT_EQ(tokenizer->eod(), vocab["<|endoftext|>"].get<int>());
  EXPECT_EQ(tokenizer->bos(), tokenizer->eod());
  EXPECT_EQ(tokenizer->pad(), -1);
  const Ids ids = encode(*tokenizer, "The license<|endoftext|> is\xc3\xa9 here");
  EXPECT_EQ(std::ranges::count(ids, tokenizer->eod()), 1);
  EXPECT_EQ(tokenizer->decode(ids), "The license<|endoftext|> is\xc3\xa9 here");
  folder.write("merges.txt", merges + "a b c\n");
  EXPECT_TRUE(contains(message_of<UserError>([&] {
                         HuggingFaceTokenizer::load_gpt2(folder / "vocab.json", folder / "merges.txt", true);
                       }),
                       "merges.txt"));
}

TEST(LegacyTokenizers, BertFromVocab) {
  TempFolder folder;
  const auto vocab = folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nHello\nwor\n##ld\n!\n");
  const auto lower = HuggingFaceTokenizer::load_bert(vocab, true, true);
  EXPECT_EQ(encode(*lower, "Hello world! zzz [MASK]"), (Ids{2, 5, 7, 8, 9, 1, 4, 3}));
  EXPECT_EQ(encode(*HuggingFaceTokenizer::load_bert(vocab, false, true), "Hello"), (Ids{2, 6, 3}));
  EXPECT_EQ(encode(*HuggingFaceTokenizer::load_bert(vocab, false, false), "Hello"), (Ids{6}));
  EXPECT_EQ(lower->decode(Ids{2, 5, 7, 8, 9, 3}), "[CLS] hello world! [SEP]");
  EXPECT_EQ(lower->eod(), 3);
  EXPECT_EQ(lower->pad(), 0);
  EXPECT_EQ(lower->unk(), 1);
  folder.write("vocab.txt", "hello\n");
  EXPECT_TRUE(contains(message_of<UserError>([&] { HuggingFaceTokenizer::load_bert(vocab, true, true); }), "[UNK]"));
}

}  // namespace
}  // namespace tera
