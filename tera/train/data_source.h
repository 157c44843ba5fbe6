#pragma once
// Tokenizer and datasets of a run, from its config.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tera/config/setup.h"
#include "tera/data/batching/batch_loader.h"
#include "tera/data/batching/dynamic_cp_loader.h"
#include "tera/data/data_split.h"
#include "tera/data/dataset.h"
#include "tera/tokenizer/tokenizer.h"
#include "tera/train/data_splits.h"

namespace tera {

std::unique_ptr<Tokenizer> make_tokenizer(const Setup& setup);

struct DataSource {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Dataset> train;
  std::vector<ValidationSet> valid;  // empty without validation data or without evaluation
  std::string summary;               // for the log
  std::vector<std::string> warnings;
};

DataSource make_data_source(const Setup& setup);

// How samples become rows of a batch, for a single replica; without a tokenizer there is no end-of-document token.
BatchOptions batch_options(const Setup& setup, const Tokenizer* tokenizer);

// How the dynamic context-parallel scheduler assigns the documents of a step; for one context-parallel rank of a
// replica.
DynamicCpLoader::Options dynamic_cp_options(const Setup& setup, int replica, int rank);

// The order of training samples with dataset.dataloader_type=cyclic.
CyclicSampler::Options cyclic_options(const Setup& setup, const Dataset& train);

// One split alone, as training would see it; null where dataset.split or the paths leave it empty.
std::unique_ptr<Dataset> make_split(const Setup& setup, DataSplit split);

// The number of samples that indexed data is built for; none: each sample once.
std::optional<std::int64_t> samples_asked(const Setup& setup, DataSplit split);

}  // namespace tera
