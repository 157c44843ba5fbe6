#include "tera/train/data_source.h"

#include <fmt/format.h>

#include "tera/base/error.h"
#include "tera/data/text_dataset.h"

namespace tera {
namespace {

bool evaluates(const Setup& setup) {
  return setup.config.train.eval_iters > 0 && setup.config.train.eval_interval > 0 &&
         setup.config.train.eval_interval <= setup.batch.train_iters;
}

DataSource mock_source(const Setup& setup) {
  const auto seed = static_cast<std::uint64_t>(setup.config.train.seed);
  DataSource source;
  source.train = std::make_unique<MockDataset>(setup.model.vocab, seed);
  if (evaluates(setup)) source.valid = std::make_unique<MockDataset>(setup.model.vocab, seed, /*part=*/1);
  source.summary = "mock tokens";
  return source;
}

DataSource text_source(const Setup& setup, const Tokenizer& tokenizer) {
  const auto corpus = std::make_shared<const TextCorpus>(
      TextCorpus::Options{
          .paths = setup.config.dataset.data_path, .vocab_size = setup.model.vocab, .split = setup.split},
      tokenizer);
  const auto part = [&](DataSplit split) {
    return std::make_unique<TextDataset>(
        corpus, TextDataset::Options{.split = split,
                                     .seq_length = setup.batch.seq_length,
                                     .seed = static_cast<std::uint64_t>(setup.config.train.seed)});
  };
  DataSource source;
  source.train = part(DataSplit::train);
  if (evaluates(setup)) source.valid = part(DataSplit::valid);
  source.summary = fmt::format("{} tokens in {} documents", corpus->tokens(), corpus->documents());
  return source;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const Setup& setup) {
  switch (setup.config.tokenizer.tokenizer_type) {
    case TokenizerKind::byte: return std::make_unique<ByteTokenizer>();
    case TokenizerKind::null: return std::make_unique<NullTokenizer>(setup.model.vocab);
  }
  fail("tokenizer {} cannot be made", name_of(setup.config.tokenizer.tokenizer_type));
}

DataSource make_data_source(const Setup& setup) {
  auto tokenizer = make_tokenizer(setup);
  DataSource source =
      setup.config.dataset.kind == DatasetKind::mock ? mock_source(setup) : text_source(setup, *tokenizer);
  source.tokenizer = std::move(tokenizer);
  return source;
}

}  // namespace tera
