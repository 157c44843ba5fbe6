#include "tera/train/export_tokenizer.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "tera/base/file.h"
#include "tera/tokenizer/huggingface/hugging_face.h"
#include "tera/tokenizer/huggingface/token_json.h"
#include "tera/tokenizer/make_tokenizer.h"

namespace tera {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr auto config_name = "tokenizer_config.json";

class TokenizerExport {
 public:
  TokenizerExport(const Setup& setup, const Tokenizer& tokenizer)
      : options_(setup.config.tokenizer.options()), tokenizer_(tokenizer) {
    const auto in_model = [&](std::int32_t id) { return id < setup.model.vocab ? id : -1; };
    out_.files.ids = {
        .bos = in_model(tokenizer.bos()), .eos = in_model(tokenizer.eod()), .pad = in_model(tokenizer.pad())};
    // Mock tokens are not text, so no id has a meaning.
    if (options_.type == TokenizerKind::byte && setup.config.dataset.kind == DatasetKind::mock) out_.files.ids = {};
    config_["model_max_length"] = setup.model.max_positions;
  }

  ExportedTokenizer make() {
    switch (options_.type) {
      case TokenizerKind::byte:
      case TokenizerKind::null:
        out_.remark = fmt::format("no tokenizer goes along: transformers has no {}", name_of(options_.type));
        break;
      case TokenizerKind::hugging_face: take_hugging_face(); break;
      case TokenizerKind::gpt2_bpe:
        take(options_.vocab_file, "vocab.json");
        take(options_.merge_file, "merges.txt");
        write_config("GPT2Tokenizer");
        break;
      case TokenizerKind::bert_lower_case:
      case TokenizerKind::bert_case:
        take(options_.vocab_file, "vocab.txt");
        config_["do_lower_case"] = options_.type == TokenizerKind::bert_lower_case;
        write_config("BertTokenizer");
        break;
      default: {
        const fs::path file = options_.model;
        const std::string name =
            options_.type == TokenizerKind::tik ? file.filename().string() : std::string("tokenizer.model");
        take(file, name);
        out_.remark =
            fmt::format("{} goes along as it is; which class of transformers reads it is for you to say", name);
      }
    }
    return std::move(out_);
  }

 private:
  void take(const fs::path& file, const std::string& as) {
    out_.files.files[as] = read_whole_file(file, max_tokenizer_bytes);
  }

  void take_hugging_face() {
    const std::vector<fs::path> files = tokenizer_files(options_);
    take(files.front(), "tokenizer.json");
    for (auto file = files.begin() + 1; file != files.end(); ++file) take(*file, file->filename().string());
    if (!out_.files.files.contains(config_name)) write_config("PreTrainedTokenizerFast");
  }

  void write_config(const char* name) {
    config_["tokenizer_class"] = name;
    config_["clean_up_tokenization_spaces"] = false;
    const auto* known = dynamic_cast<const HuggingFaceTokenizer*>(&tokenizer_);
    const auto add = [&](const char* role, std::int32_t id) {
      if (known != nullptr && id >= 0) config_[role] = known->parts().tokens.at(static_cast<std::size_t>(id));
    };
    add("bos_token", tokenizer_.bos());
    add("eos_token", tokenizer_.eod());
    add("unk_token", tokenizer_.unk());
    add("pad_token", tokenizer_.pad());
    out_.files.files[config_name] = config_.dump(2) + "\n";
  }

  TokenizerOptions options_;
  const Tokenizer& tokenizer_;
  OrderedJson config_;
  ExportedTokenizer out_;
};

}  // namespace

ExportedTokenizer export_tokenizer(const Setup& setup, const Tokenizer& tokenizer) {
  return TokenizerExport(setup, tokenizer).make();
}

}  // namespace tera
