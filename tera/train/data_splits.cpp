#include "tera/train/data_splits.h"

#include <fmt/core.h>

#include <utility>

#include "tera/base/error.h"
#include "tera/data/indexed/indexed_builder.h"
#include "tera/data/once_dataset.h"
#include "tera/data/preprocess/text_files.h"
#include "tera/data/sft/sft_dataset.h"
#include "tera/data/text_dataset.h"
#include "tera/train/data_source.h"

namespace tera {
namespace {

// The fractions of the data at which a split begins and ends.
std::pair<double, double> fractions_of(const Setup& setup, DataSplit split) {
  if (setup.indexed.data_per_split) return {0, 1};
  const auto bounds = split_bounds(setup.split);
  const auto i = static_cast<std::size_t>(split);
  return {bounds[i], bounds[i + 1]};
}

// Null where the validation data is empty.
std::unique_ptr<Dataset> for_evaluation(const Setup& setup, std::unique_ptr<Dataset> dataset) {
  if (!dataset || dataset->samples() == 0) return nullptr;
  if (!setup.config.dataset.full_validation) return dataset;
  return std::make_unique<OnceDataset>(std::move(dataset));
}

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
    require_user(!setup_.indexed.blends[0].prefixes.empty() || setup_.indexed.data_per_split,
                 "dataset.data_path is not given; dataset.kind=indexed needs a prefix or a list of them");
    auto dataset = build(split, setup_.indexed.blends[static_cast<std::size_t>(split)]);
    if (split == DataSplit::train) {
      check_train(dataset.get());
      check_length();
    }
    return split == DataSplit::valid ? for_evaluation(setup_, std::move(dataset)) : std::move(dataset);
  }
  std::vector<ValidationSet> make_validation_sets() override {
    if (setup_.indexed.valid_names.empty()) return SplitMaker::make_validation_sets();
    std::vector<ValidationSet> sets;
    for (std::size_t i = 0; i < setup_.indexed.valid_names.size(); ++i)
      if (auto dataset = for_evaluation(setup_, build(DataSplit::valid, {{setup_.indexed.blends[1].prefixes[i]}, {}})))
        sets.push_back({setup_.indexed.valid_names[i], std::move(dataset)});
    return sets;
  }
  std::string summary() const override {
    return fmt::format("{} tokens in {} documents", builder_.tokens(), builder_.documents());
  }

 private:
  std::unique_ptr<Dataset> build(DataSplit split, const BlendShape& blend) {
    const auto [begin, end] = fractions_of(setup_, split);
    return builder_.build({.split = split,
                           .blend = blend,
                           .begin = begin,
                           .end = end,
                           .samples = samples_asked(setup_, split),
                           .lone_prefix_is_plain = setup_.indexed.data_per_split});
  }

  void check_train(const Dataset* dataset) const {
    require_user(
        dataset != nullptr, "{} gives the training data nothing",
        setup_.indexed.data_per_split ? "dataset.train_data_path" : "dataset.split=" + setup_.config.dataset.split);
    if (setup_.config.dataset.dataloader_type == DataloaderType::cyclic) return;  // a cyclic loader starts over
    const std::int64_t asked = samples_asked(setup_, DataSplit::train).value_or(0);
    require_user(dataset->samples() >= asked,
                 "the run reads {} samples, and the datasets, which without weights are read once, have {}: give "
                 "weights (dataset.data_path=[weight, prefix, ...]), or a smaller train.train_iters",
                 asked, dataset->samples());
  }

  // Warns of sequences longer than documents; only the training data is open here.
  void check_length() {
    const std::int64_t length = setup_.batch.seq_length;
    if (builder_.tokens() <= length)  // a sample has one token more
      return warnings_.push_back(
          fmt::format("a sample of train.seq_length={} is longer than all the data, {} tokens, which it repeats",
                      length, builder_.tokens()));
    if (setup_.batch.packs_documents) return;  // packed sequences are meant to have several documents
    if (const auto longest = builder_.longest_below(length))
      warnings_.push_back(
          fmt::format("train.seq_length={} is longer than the longest document, {} tokens: nothing in the data reaches "
                      "that far, and every sample is made of several",
                      length, *longest));
  }

  const Setup& setup_;
  IndexedBuilder builder_;
};

// Conversations: each split reads its own files, or its own lines of all files.
class SftSplits final : public SplitMaker {
 public:
  SftSplits(const Setup& setup, const Tokenizer& tokenizer) : setup_(setup), tokenizer_(tokenizer) {}
  std::unique_ptr<Dataset> make(DataSplit split) override {
    auto dataset = read(split, setup_.indexed.blends[static_cast<std::size_t>(split)].prefixes);
    if (split == DataSplit::valid) return for_evaluation(setup_, std::move(dataset));
    require_user(
        split != DataSplit::train || (dataset && dataset->samples() > 0), "{} gives the training data no conversation",
        setup_.indexed.data_per_split ? "dataset.train_data_path" : "dataset.split=" + setup_.config.dataset.split);
    return dataset;
  }
  std::vector<ValidationSet> make_validation_sets() override {
    if (setup_.indexed.valid_names.empty()) return SplitMaker::make_validation_sets();
    std::vector<ValidationSet> sets;
    for (std::size_t i = 0; i < setup_.indexed.valid_names.size(); ++i)
      if (auto dataset = for_evaluation(setup_, read(DataSplit::valid, {setup_.indexed.blends[1].prefixes[i]})))
        sets.push_back({setup_.indexed.valid_names[i], std::move(dataset)});
    return sets;
  }
  std::string summary() const override {
    return fmt::format("{} tokens in {} samples of conversations", tokens_, lines_);
  }

 private:
  std::unique_ptr<SftDataset> read(DataSplit split, const std::vector<std::string>& paths) {
    const auto [begin, end] = fractions_of(setup_, split);
    if (paths.empty() || !(begin < end)) return nullptr;
    auto dataset = std::make_unique<SftDataset>(SftDataset::Options{.paths = files_of(split, paths),
                                                                    .begin = begin,
                                                                    .end = end,
                                                                    .seq_length = setup_.batch.seq_length,
                                                                    .vocab_size = setup_.model.vocab,
                                                                    .format = setup_.config.dataset.chat_format},
                                                tokenizer_);
    check_targets(split, *dataset);
    tokens_ += dataset->tokens();
    lines_ += dataset->samples();
    return dataset;
  }

  std::vector<std::string> files_of(DataSplit split, const std::vector<std::string>& paths) const {
    const std::string key =
        setup_.indexed.data_per_split ? fmt::format("dataset.{}_data_path", name_of(split)) : "dataset.data_path";
    std::vector<std::string> files;
    for (const auto& file : find_text_files(paths, key)) files.push_back(file.string());
    return files;
  }

  void check_targets(DataSplit split, const SftDataset& dataset) {
    const std::int64_t samples = dataset.samples(), without = dataset.without_target();
    if (without == 0) return;
    const std::string why =
        fmt::format("no answer of an assistant within train.seq_length={} tokens", setup_.batch.seq_length);
    require_user(without < samples, "none of the {} samples of the {} split has a target: {}", samples, name_of(split),
                 why);
    warnings_.push_back(
        fmt::format("{} of the {} samples of the {} split have no target: {}", without, samples, name_of(split), why));
  }

  const Setup& setup_;
  const Tokenizer& tokenizer_;
  std::int64_t tokens_ = 0, lines_ = 0;
};

}  // namespace

std::vector<ValidationSet> SplitMaker::make_validation_sets() {
  std::vector<ValidationSet> sets;
  if (auto dataset = make(DataSplit::valid)) sets.push_back({"", std::move(dataset)});
  return sets;
}

std::unique_ptr<SplitMaker> make_splits(const Setup& setup, const Tokenizer& tokenizer) {
  switch (setup.config.dataset.kind) {
    case DatasetKind::mock: return std::make_unique<MockSplits>(setup);
    case DatasetKind::text: return std::make_unique<TextSplits>(setup, tokenizer);
    case DatasetKind::indexed: return std::make_unique<IndexedSplits>(setup);
    case DatasetKind::sft: return std::make_unique<SftSplits>(setup, tokenizer);
  }
  fail("datasets of kind {} cannot be made", name_of(setup.config.dataset.kind));
}

}  // namespace tera
