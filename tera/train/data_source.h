#pragma once
// Tokenizer and datasets of a run, from its config.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tera/config/setup.h"
#include "tera/data/batch_loader.h"
#include "tera/data/data_split.h"
#include "tera/data/dataset.h"
#include "tera/data/dealer.h"
#include "tera/tokenizer/tokenizer.h"
#include "tera/train/data_splits.h"

namespace tera {

std::unique_ptr<Tokenizer> make_tokenizer(const Setup& setup);

struct DataSource {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Dataset> train;
  std::vector<ValidationSet> valid;  // none when the split gives it nothing or no evaluation is asked for
  std::string summary;               // for the log
  std::vector<std::string> warnings;
};

DataSource make_data_source(const Setup& setup);

// How samples become rows, on a run's only replica; a run without tokenizer knows no end of a document.
BatchOptions batch_options(const Setup& setup, const Tokenizer* tokenizer);

// How the documents of a step are dealt out, with dist.dynamic_context_parallel; for one of the ranks that share
// sequences in a replica.
Dealer::Options deal_options(const Setup& setup, int replica, int rank);

// The order of training samples with dataset.dataloader_type=cyclic.
CyclicSampler::Options cyclic_options(const Setup& setup, const Dataset& train);

// One split alone, as training would see it; none where dataset.split or the paths give it nothing.
std::unique_ptr<Dataset> make_split(const Setup& setup, DataSplit split);

// Samples that indexed data is built for; none: each sample once.
std::optional<std::int64_t> samples_asked(const Setup& setup, DataSplit split);

}  // namespace tera
