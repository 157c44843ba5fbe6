#include "tera/train/data_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tera/base/error.h"
#include "tera/data/indexed_builder.h"
#include "tera/data/once_dataset.h"
#include "tera/data/text_dataset.h"
#include "tera/tokenizer/make_tokenizer.h"

namespace tera {
namespace {

bool evaluates(const Setup& setup) {
  return setup.config.train.eval_iters > 0 && setup.config.train.eval_interval > 0 &&
         setup.config.train.eval_interval <= setup.batch.train_iters;
}

// Makes the splits of a run, and says what they are made of.
class SplitMaker {
 public:
  virtual ~SplitMaker() = default;
  virtual std::unique_ptr<Dataset> make(DataSplit split) = 0;  // none where the split has nothing
  virtual std::string summary() const = 0;
};

class MockSplits final : public SplitMaker {
 public:
  explicit MockSplits(const Setup& setup) : setup_(setup) {}
  std::unique_ptr<Dataset> make(DataSplit split) override {
    return std::make_unique<MockDataset>(setup_.model.vocab, static_cast<std::uint64_t>(setup_.config.train.seed),
                                         /*part=*/static_cast<std::uint64_t>(split));
  }
  std::string summary() const override { return "mock tokens"; }

 private:
  const Setup& setup_;
};

class TextSplits final : public SplitMaker {
 public:
  TextSplits(const Setup& setup, const Tokenizer& tokenizer)
      : setup_(setup),
        corpus_(std::make_shared<const TextCorpus>(
            TextCorpus::Options{
                .paths = setup.config.dataset.data_path, .vocab_size = setup.model.vocab, .split = setup.split},
            tokenizer)) {}
  std::unique_ptr<Dataset> make(DataSplit split) override {
    return std::make_unique<TextDataset>(
        corpus_, TextDataset::Options{.split = split,
                                      .seq_length = setup_.batch.seq_length,
                                      .seed = static_cast<std::uint64_t>(setup_.config.train.seed)});
  }
  std::string summary() const override {
    return fmt::format("{} tokens in {} documents", corpus_->tokens(), corpus_->documents());
  }

 private:
  const Setup& setup_;
  std::shared_ptr<const TextCorpus> corpus_;
};

IndexedBuilder::Options indexed_options(const Setup& setup) {
  const DatasetConfig& dataset = setup.config.dataset;
  return {.seq_length = setup.batch.seq_length,
          .vocab_size = setup.model.vocab,
          .seed = static_cast<std::uint32_t>(setup.config.train.seed),
          .add_extra_token = dataset.add_extra_token_to_sequence,
          .drop_last_partial_validation = dataset.drop_last_partial_validation_sequence,
          .surplus = dataset.mid_level_dataset_surplus,
          .cache_path = dataset.data_cache_path};
}

class IndexedSplits final : public SplitMaker {
 public:
  explicit IndexedSplits(const Setup& setup) : setup_(setup), builder_(indexed_options(setup)) {}
  std::unique_ptr<Dataset> make(DataSplit split) override {
    require_user(!setup_.indexed.blends[0].prefixes.empty() || setup_.indexed.own_paths,
                 "dataset.data_path is not given; dataset.kind=indexed needs a prefix or a list of them");
    const auto i = static_cast<std::size_t>(split);
    const auto bounds = split_bounds(setup_.split);
    const bool own = setup_.indexed.own_paths;
    auto dataset = builder_.build({.split = split,
                                   .blend = setup_.indexed.blends[i],
                                   .begin = own ? 0 : bounds[i],
                                   .end = own ? 1 : bounds[i + 1],
                                   .samples = samples_asked(setup_, split),
                                   .lone_prefix_is_plain = own});
    if (split == DataSplit::train) check_train(dataset.get());
    if (split == DataSplit::valid && dataset && dataset->samples() == 0) return nullptr;
    if (split == DataSplit::valid && dataset && setup_.config.dataset.full_validation)
      return std::make_unique<OnceDataset>(std::move(dataset));
    return dataset;
  }
  std::string summary() const override {
    return fmt::format("{} tokens in {} documents", builder_.tokens(), builder_.documents());
  }

 private:
  void check_train(const Dataset* dataset) const {
    require_user(dataset != nullptr, "{} gives the training data nothing",
                 setup_.indexed.own_paths ? "dataset.train_data_path" : "dataset.split=" + setup_.config.dataset.split);
    if (setup_.config.dataset.dataloader_type == DataloaderType::cyclic) return;  // it starts over
    const std::int64_t asked = samples_asked(setup_, DataSplit::train).value_or(0);
    require_user(dataset->samples() >= asked,
                 "the run reads {} samples, and the datasets, which without weights are read once, have {}: give "
                 "weights (dataset.data_path=[weight, prefix, ...]), or a smaller train.train_iters",
                 asked, dataset->samples());
  }

  const Setup& setup_;
  IndexedBuilder builder_;
};

std::unique_ptr<SplitMaker> make_splits(const Setup& setup, const Tokenizer& tokenizer) {
  switch (setup.config.dataset.kind) {
    case DatasetKind::mock: return std::make_unique<MockSplits>(setup);
    case DatasetKind::text: return std::make_unique<TextSplits>(setup, tokenizer);
    case DatasetKind::indexed: return std::make_unique<IndexedSplits>(setup);
  }
  fail("datasets of kind {} cannot be made", name_of(setup.config.dataset.kind));
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const Setup& setup) {
  TokenizerOptions options = setup.config.tokenizer.options();
  if (options.type == TokenizerKind::byte) return make_tokenizer(options);  // the rules of the config look after it
  if (options.type == TokenizerKind::null) options.vocab_size = setup.model.vocab;
  auto tokenizer = make_tokenizer(options);
  require_user(tokenizer->vocab_size() <= setup.model.vocab,
               "{} has ids up to {}, and the model's vocabulary (model.vocab_size) ends at {}", name_of(options.type),
               tokenizer->vocab_size() - 1, setup.model.vocab - 1);
  return tokenizer;
}

std::optional<std::int64_t> samples_asked(const Setup& setup, DataSplit split) {
  const TrainConfig& train = setup.config.train;
  const std::int64_t batch = setup.batch.global_batch, iters = setup.batch.train_iters;
  if (split == DataSplit::train) return train.train_samples > 0 ? train.train_samples : iters * batch;
  if (split == DataSplit::valid && setup.config.dataset.full_validation) return {};
  const std::int64_t times =
      split == DataSplit::valid ? (train.eval_interval > 0 ? iters / train.eval_interval : 0) + 1 : 1;
  const double asked = static_cast<double>(times) * static_cast<double>(train.eval_iters) * static_cast<double>(batch);
  require_user(asked < 0x1p62, "train.eval_iters={} asks for {:.2g} samples of the {} split", train.eval_iters, asked,
               name_of(split));
  return times * train.eval_iters * batch;
}

namespace {

void check_document_ends(const DatasetConfig& dataset, const Tokenizer& tokenizer) {
  const bool needed = dataset.reset_position_ids || dataset.reset_attention_mask || dataset.eod_mask_loss;
  require_user(!needed || tokenizer.eod() >= 0,
               "dataset.reset_position_ids, reset_attention_mask and eod_mask_loss need a tokenizer with an end of "
               "document; this one has none");
}

}  // namespace

BatchOptions batch_options(const Setup& setup, const Tokenizer* tokenizer) {
  const DatasetConfig& dataset = setup.config.dataset;
  const bool indexed = dataset.kind == DatasetKind::indexed;  // other data is never padded
  return {.seq_length = setup.batch.seq_length,
          .micro_batch_size = setup.batch.micro_batch,
          .global_batch_size = setup.batch.global_batch,
          .eod = tokenizer ? tokenizer->eod() : -1,
          .pad = tokenizer && indexed ? tokenizer->pad() : -1,
          .eod_mask_loss = dataset.eod_mask_loss,
          .reset_position_ids = dataset.reset_position_ids,
          .reset_attention_mask = setup.batch.packs_documents};
}

CyclicSampler::Options cyclic_options(const Setup& setup, const Dataset& train) {
  return {.samples = train.samples(),
          .micro_batch_size = setup.batch.micro_batch,
          .data_ranks = setup.parallel.dp,
          .data_sharding = setup.config.dataset.data_sharding};
}

std::unique_ptr<Dataset> make_split(const Setup& setup, DataSplit split) {
  const auto bounds = split_bounds(setup.split);
  const auto i = static_cast<std::size_t>(split);
  const bool cut = setup.config.dataset.kind != DatasetKind::mock && !setup.indexed.own_paths;  // by dataset.split
  if (cut && !(bounds[i] < bounds[i + 1])) return nullptr;
  return make_splits(setup, *make_tokenizer(setup))->make(split);
}

DataSource make_data_source(const Setup& setup) {
  DataSource source;
  source.tokenizer = make_tokenizer(setup);
  check_document_ends(setup.config.dataset, *source.tokenizer);
  const auto splits = make_splits(setup, *source.tokenizer);
  source.train = splits->make(DataSplit::train);
  if (evaluates(setup)) source.valid = splits->make(DataSplit::valid);
  source.valid_batches = setup.config.train.eval_iters;
  if (source.valid && setup.config.dataset.full_validation)
    source.valid_batches = (source.valid->samples() + setup.batch.global_batch - 1) / setup.batch.global_batch;
  source.summary = splits->summary();
  return source;
}

}  // namespace tera
