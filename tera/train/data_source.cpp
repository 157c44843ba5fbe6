#include "tera/train/data_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "tera/base/error.h"
#include "tera/data/indexed/indexed_builder.h"
#include "tera/models/flops.h"
#include "tera/tokenizer/make_tokenizer.h"

namespace tera {
namespace {

bool evaluates(const Setup& setup) { return setup.config.train.eval_iters > 0 && setup.config.train.eval_interval > 0; }

// Whether dataset.split gives the split any data; mock data and per-split paths are not divided.
bool has_width(const Setup& setup, DataSplit split) {
  if (setup.config.dataset.kind == DatasetKind::mock || setup.indexed.data_per_split) return true;
  const auto bounds = split_bounds(setup.split);
  const auto i = static_cast<std::size_t>(split);
  return bounds[i] < bounds[i + 1];
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const Setup& setup) {
  TokenizerOptions options = setup.config.tokenizer.options();
  if (options.type == TokenizerKind::byte) return make_tokenizer(options);  // the config's rules check its vocabulary
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
  if (split == DataSplit::train) return train.train_samples > 0 ? train.train_samples : setup.batch.samples_at_end();
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
          .reset_attention_mask = setup.batch.packs_documents,
          .mtp_depths = setup.model.mtp_layers};
}

namespace {

// Costs for the dynamic context-parallel scheduler, in forward FLOPs of a layer with an even share of the head;
// backward doubles all of them. Communication is converted to FLOPs: in the time of a byte to a ring neighbour a GPU
// computes about a thousand FLOPs, a core about ten.
DynamicCpCosts dynamic_cp_costs(const Setup& setup) {
  const ModelShape& model = setup.model;
  const bool gpu = setup.config.dist.device == DeviceChoice::cuda;
  const double flops_per_byte = gpu ? 1000 : 10, bytes = gpu ? 2 : 4;
  const auto layers = static_cast<double>(std::max<std::int64_t>(model.all_layers(), 1)),
             keys = static_cast<double>((model.mla ? model.heads : model.kv_heads) * model.head_dim);
  const double without_attention = model_flops_per_token(model, 0);
  const double half_a_pair = model_flops_per_token(model, 1) - without_attention;  // it counts a causal mask
  return {.row = without_attention / 3 / layers,
          .pair = 2 * half_a_pair / 3 / layers,
          .sent = 2 * keys * bytes * flops_per_byte};
}

}  // namespace

DynamicCpLoader::Options dynamic_cp_options(const Setup& setup, int replica, int rank) {
  constexpr std::int64_t documents_at_first = 1 << 16;
  const BatchShape& batch = setup.batch;
  const ParallelShape& parallel = setup.parallel;
  std::vector<std::int64_t> counts = batch.smaller_steps();
  counts.push_back(batch.largest_step());
  return {.scheduler = {.rows = batch.micro_batch * batch.seq_length / parallel.mesh.cp,
                        .ranks = parallel.mesh.cp,
                        .replicas = parallel.dp,
                        .counts = std::move(counts),
                        .costs = dynamic_cp_costs(setup),
                        .lockstep = parallel.mesh.ep > 1 || parallel.sharding >= Sharding::optim_grads,
                        .documents = static_cast<std::size_t>(
                            std::min(batch.global_batch * batch.seq_length, documents_at_first))},
          .replica = replica,
          .rank = rank,
          .micro_batch_size = batch.micro_batch};
}

CyclicSampler::Options cyclic_options(const Setup& setup, const Dataset& train) {
  return {.samples = train.samples(),
          .micro_batch_size = setup.batch.micro_batch,
          .data_ranks = setup.parallel.dp,
          .data_sharding = setup.config.dataset.data_sharding};
}

std::unique_ptr<Dataset> make_split(const Setup& setup, DataSplit split) {
  if (!has_width(setup, split)) return nullptr;
  return make_splits(setup, *make_tokenizer(setup))->make(split);
}

namespace {

// A run without validation data trains, with a warning that it will not evaluate. So does a run whose only evaluation
// is the one at the end, which may not be intended, where the validation split is too small.
void add_validation(const Setup& setup, SplitMaker& splits, DataSource& source) {
  const DatasetConfig& dataset = setup.config.dataset;
  const bool only_at_end = setup.config.train.eval_interval > setup.batch.train_iters;
  std::string why = fmt::format("{} gives it nothing", setup.indexed.data_per_split ? "dataset.valid_data_path"
                                                                                    : "dataset.split=" + dataset.split);
  try {
    if (has_width(setup, DataSplit::valid)) source.valid = splits.make_validation_sets();
  } catch (const UserError& error) {
    if (!only_at_end || setup.indexed.data_per_split) throw;
    why = error.what();
  }
  if (source.valid.empty())
    source.warnings.push_back(fmt::format("there will be no evaluation, which train.eval_interval={} asks for: {}",
                                          setup.config.train.eval_interval, why));
}

// Without end-of-document tokens in the data all of it would be one long document.
void check_ends_are_there(const Setup& setup, DataSource& source) {
  constexpr std::int64_t inspected = 16;
  const DatasetConfig& dataset = setup.config.dataset;
  const bool needed = dataset.reset_position_ids || dataset.reset_attention_mask || dataset.eod_mask_loss;
  if (!needed || dataset.kind != DatasetKind::indexed) return;
  const std::int64_t samples = std::min(inspected, source.train->samples());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(setup.batch.seq_length + 1));
  for (std::int64_t i = 0; i < samples; ++i) {
    source.train->sample(i, ids);
    if (std::ranges::find(ids, source.tokenizer->eod()) != ids.end()) return;
  }
  source.warnings.push_back(
      fmt::format("the first {} samples hold no end of a document ({}), by which reset_position_ids, "
                  "reset_attention_mask and eod_mask_loss go; tera preprocess writes them with --append-eod",
                  samples, source.tokenizer->eod()));
}

}  // namespace

DataSource make_data_source(const Setup& setup) {
  DataSource source;
  source.tokenizer = make_tokenizer(setup);
  check_document_ends(setup.config.dataset, *source.tokenizer);
  const auto splits = make_splits(setup, *source.tokenizer);
  source.train = splits->make(DataSplit::train);
  check_ends_are_there(setup, source);
  if (evaluates(setup)) add_validation(setup, *splits, source);
  const std::int64_t batch = setup.batch.global_batch;
  for (ValidationSet& set : source.valid)
    set.batches = setup.config.dataset.full_validation ? (set.dataset->samples() + batch - 1) / batch
                                                       : setup.config.train.eval_iters;
  source.summary = splits->summary();
  for (const std::string& warning : splits->warnings()) source.warnings.push_back(warning);
  return source;
}

}  // namespace tera
