#include <nlohmann/json.hpp>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/tokenizer/bpe/bpe_trainer.h"
#include "tera/tokenizer/bpe/byte_level.h"

namespace tera {

namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson byte_level_step(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

OrderedJson pre_tokenizer_of(SplitPattern pattern) {
  if (pattern == SplitPattern::gpt2) return byte_level_step(true);
  const std::string_view regex = regex_of(pattern);
  require(!regex.empty(), "the pattern of this vocabulary is not one expression");
  const OrderedJson split{
      {"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", OrderedJson::array({split, byte_level_step(false)})}};
}

OrderedJson added_tokens_of(const TrainedBpe& trained) {
  OrderedJson added = OrderedJson::array();
  for (std::size_t id = 0; id < trained.special_count; ++id)
    added.push_back({{"id", id},
                     {"content", trained.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  return added;
}

// Special tokens are spelled as they are, the others in the byte alphabet. Written by hand: an ordered JSON object
// looks through all its keys for each new one.
void append_vocab(std::string& text, const std::vector<std::string>& spelled) {
  text += "{";
  for (std::size_t id = 0; id < spelled.size(); ++id)
    text += (id == 0 ? "\n      " : ",\n      ") + OrderedJson(spelled[id]).dump() + ": " + std::to_string(id);
  text += "\n    }";
}

}  // namespace

void write_tokenizer_json(const std::filesystem::path& path, const TrainedBpe& trained) {
  std::vector<std::string> spelled;
  for (std::size_t id = 0; id < trained.tokens.size(); ++id)
    spelled.push_back(id < trained.special_count ? trained.tokens[id] : to_byte_level(trained.tokens[id]));
  const auto field = [](const char* name, const OrderedJson& value) {
    return "  \"" + std::string(name) + "\": " + value.dump() + ",\n";
  };
  OrderedJson decoder = byte_level_step(true);
  std::string text = "{\n" + field("version", "1.0") + field("truncation", nullptr) + field("padding", nullptr) +
                     field("added_tokens", added_tokens_of(trained)) + field("normalizer", nullptr) +
                     field("pre_tokenizer", pre_tokenizer_of(trained.pattern)) + field("post_processor", nullptr) +
                     field("decoder", decoder);
  text +=
      "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
      "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": ";
  append_vocab(text, spelled);
  text += ",\n    \"merges\": [";
  for (std::size_t i = 0; i < trained.merges.size(); ++i) {
    const auto [left, right] = trained.merges[i];
    const OrderedJson pair{spelled[static_cast<std::size_t>(left)], spelled[static_cast<std::size_t>(right)]};
    text += (i == 0 ? "\n      " : ",\n      ") + pair.dump();
  }
  text += "\n    ]\n  }\n}\n";
  write_file_atomically(path, text);
}

}  // namespace tera
