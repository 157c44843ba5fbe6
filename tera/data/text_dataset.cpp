#include "tera/data/text_dataset.h"

#include <algorithm>
#include <cmath>

#include "tera/base/error.h"
#include "tera/data/preprocess/text_files.h"

namespace tera {
namespace {

// Checks a document's ids before a model may see them.
void check_ids(std::span<const std::int32_t> ids, std::int64_t vocab_size, const std::string& source) {
  if (ids.empty()) return;
  const std::int32_t largest = std::ranges::max(ids);
  require_user(largest < vocab_size, "{} gives the token id {}, but model.vocab_size is {}: ids must be below it",
               source, largest, vocab_size);
}

// Refuses JSONL, whose braces would be trained on too.
void check_not_json(const std::string& path) {
  std::string name = path;
  std::ranges::transform(name, name.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  for (const std::string_view packed : {".gz", ".zst"})
    if (name.ends_with(packed)) name.resize(name.size() - packed.size());
  for (const char* end : {".jsonl", ".ndjson", ".json"})
    require_user(
        !name.ends_with(end),
        "{}: dataset.kind=text reads plain text, and this is JSON; make a dataset of JSON Lines with tera preprocess "
        "and read it with dataset.kind=indexed, or, if they are conversations, set dataset.kind=sft",
        path);
}

}  // namespace

TextCorpus::TextCorpus(const Options& options, const Tokenizer& tokenizer) {
  const std::int32_t eod = tokenizer.eod();
  check_ids(std::span(&eod, 1), options.vocab_size, "the tokenizer's end of document");
  const auto paths = find_text_files(options.paths);
  for (const auto& path : paths) check_not_json(path.string());
  for (const auto& path : paths) {
    const std::string text = read_text_file(path);
    const std::size_t before = tokens_.size();
    try {
      tokenizer.encode(text, tokens_);
    } catch (const UserError& error) {
      fail_user("{}: {}", path.string(), error.what());
    }
    check_ids(std::span(tokens_).subspan(before), options.vocab_size, path.string());
    require_user(tokens_.size() > before, "{} holds no text", path.string());
    tokens_.push_back(eod);
    ++documents_;
  }
  const std::array fractions{options.split.train, options.split.valid, options.split.test};
  double bound = 0;
  for (std::size_t i = 0; i < fractions.size(); ++i) {
    require(fractions[i] >= 0 && fractions[i] <= 1, "a part of {} of the text cannot be cut off", fractions[i]);
    bound += fractions[i];
    bounds_[i + 1] = std::min<std::int64_t>(tokens(), std::llrint(bound * static_cast<double>(tokens())));
  }
}

std::span<const std::int32_t> TextCorpus::part(DataSplit split) const {
  const auto i = static_cast<std::size_t>(split);
  return std::span(tokens_).subspan(static_cast<std::size_t>(bounds_[i]),
                                    static_cast<std::size_t>(bounds_[i + 1] - bounds_[i]));
}

namespace {

std::int64_t windows(std::span<const std::int32_t> tokens, const TextDataset::Options& options) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  require(options.seq_length > 0, "a sequence of {} tokens cannot be read", options.seq_length);
  require_user(n > options.seq_length,
               "the {} split of the text has {} tokens, fewer than train.seq_length + 1 = {}: give more text "
               "(dataset.data_path) or another dataset.split",
               name_of(options.split), n, options.seq_length + 1);
  return (n - 1) / options.seq_length;
}

}  // namespace

TextDataset::TextDataset(std::shared_ptr<const TextCorpus> corpus, const Options& options)
    : corpus_(std::move(corpus)),
      tokens_(corpus_->part(options.split)),
      seq_length_(options.seq_length),
      samples_(windows(tokens_, options)),
      order_(rng_stream(options.seed, name_of(options.split)), samples_) {}

void TextDataset::sample(std::int64_t index, std::span<std::int32_t> tokens) const {
  require(index >= 0 && std::ssize(tokens) == seq_length_ + 1, "sample {} has {} ids, {} were asked for", index,
          seq_length_ + 1, tokens.size());
  const std::int64_t window = order_.at(index % samples_, index / samples_);
  std::ranges::copy(tokens_.subspan(static_cast<std::size_t>(window * seq_length_), tokens.size()), tokens.begin());
}

}  // namespace tera
