#include "tera/data/indexed/indexed_builder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tera/base/error.h"
#include "tera/data/blended_dataset.h"
#include "tera/data/gpt_dataset.h"

namespace tera {
namespace {

// Rounds half to even, as Python's round() does.
std::int64_t round_to_even(double value) { return static_cast<std::int64_t>(std::nearbyint(value)); }

std::int64_t samples_of(std::int64_t samples, double weight) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(samples) * weight));
}

// Checks some ids, so that data made with another tokenizer is found before the run begins. All are checked when they
// are read.
void check_some_ids(const IndexedDataset& data, std::int64_t vocab_size) {
  constexpr std::int64_t last = 15;
  if (data.sequences() == 0 || !is_integer(data.token_type())) return;
  std::array<std::int32_t, 256> ids;
  for (std::int64_t i = 0; i <= last; ++i) {
    const std::int64_t sequence = (data.sequences() - 1) * i / last;
    const std::int64_t length = data.lengths()[static_cast<std::size_t>(sequence)];
    const std::int64_t count = std::min(length, std::ssize(ids));
    try {
      data.read(sequence, (length - count) * i / last, vocab_size,
                std::span(ids).first(static_cast<std::size_t>(count)));
    } catch (const UserError& error) {
      fail_user("{}; was the dataset made with another tokenizer?", error.what());
    }
  }
}

}  // namespace

std::array<double, 4> split_bounds(const SplitShape& split) {
  std::array<double, 4> bounds{0, split.train, 0, 0};
  bounds[2] = bounds[1] + split.valid;
  bounds[3] = bounds[2] + split.test;
  return bounds;
}

std::shared_ptr<const IndexedDataset> IndexedBuilder::open(const std::string& prefix) {
  auto& data = opened_[prefix];
  if (data) return data;
  data = std::make_shared<const IndexedDataset>(dataset_prefix(prefix));
  check_some_ids(*data, options_.vocab_size);
  return data;
}

std::int64_t IndexedBuilder::tokens() const {
  std::int64_t sum = 0;
  for (const auto& [prefix, data] : opened_) sum += data->tokens();
  return sum;
}

std::int64_t IndexedBuilder::documents() const {
  std::int64_t sum = 0;
  for (const auto& [prefix, data] : opened_) sum += data->documents();
  return sum;
}

std::optional<std::int64_t> IndexedBuilder::longest_below(std::int64_t tokens) const {
  constexpr std::int64_t max_looked_at = 1 << 20;  // they are in mapped files, whose other pages may not be needed
  std::int64_t longest = 0, looked_at = 0;
  for (const auto& [prefix, data] : opened_) {
    const PackedArray<std::int32_t> lengths = data->lengths();
    looked_at += static_cast<std::int64_t>(lengths.size());
    if (looked_at > max_looked_at) return std::nullopt;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      longest = std::max<std::int64_t>(longest, lengths[i]);
      if (longest >= tokens) return std::nullopt;
    }
  }
  return longest;
}

std::unique_ptr<Dataset> IndexedBuilder::plain(const IndexedSplit& split, const std::string& prefix,
                                               std::optional<std::int64_t> samples) {
  auto data = open(prefix);
  const auto count = static_cast<double>(data->sequences());
  const bool keeps_partial = split.split == DataSplit::valid && !options_.drop_last_partial_validation;
  const GptDataset::Options options{.index = {.first = round_to_even(split.begin * count),
                                              .last = std::min(round_to_even(split.end * count), data->sequences()),
                                              .samples = samples,
                                              .seq_length = options_.seq_length,
                                              .seed = options_.seed,
                                              .add_extra_token = options_.add_extra_token,
                                              .drop_last_partial = !keeps_partial,
                                              .what = fmt::format("the {} split of {}", name_of(split.split), prefix)},
                                    .vocab_size = options_.vocab_size,
                                    .cache_path = options_.cache_path};
  return std::make_unique<GptDataset>(std::move(data), options);
}

// Weights are normalized once for the sizes and once more for the order, as the original does.
std::unique_ptr<Dataset> IndexedBuilder::weighted(const IndexedSplit& split) {
  require_user(split.samples.has_value(),
               "the {} split is to be read once and whole, which a blend with weights is not", name_of(split.split));
  const std::vector<double> weights = normalized(split.blend.weights);
  std::vector<std::unique_ptr<Dataset>> datasets;
  std::int64_t size = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::int64_t target = samples_of(*split.samples, weights[i]);
    datasets.push_back(plain(split, split.blend.prefixes[i], samples_of(target, 1 + options_.surplus)));
    size += target;
  }
  return std::make_unique<BlendedDataset>(std::move(datasets), blend_by_weight(normalized(weights), size));
}

// Every dataset once, in proportion to its size.
std::unique_ptr<Dataset> IndexedBuilder::unweighted(const IndexedSplit& split) {
  std::vector<std::unique_ptr<Dataset>> datasets;
  std::vector<std::int64_t> sizes;
  for (const std::string& prefix : split.blend.prefixes) {
    datasets.push_back(plain(split, prefix, {}));
    sizes.push_back(datasets.back()->samples());
  }
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (!split.samples) return std::make_unique<BlendedDataset>(std::move(datasets), blend_all(sizes));
  const std::vector<double> weights(sizes.begin(), sizes.end());
  return std::make_unique<BlendedDataset>(std::move(datasets),
                                          blend_by_weight(normalized(weights), std::min(*split.samples, total)));
}

std::unique_ptr<Dataset> IndexedBuilder::build(const IndexedSplit& split) {
  const auto& [prefixes, weights] = split.blend;
  require(weights.empty() || weights.size() == prefixes.size(), "{} weights of {} prefixes", weights.size(),
          prefixes.size());
  if (prefixes.empty() || !(split.begin < split.end)) return nullptr;
  if (prefixes.size() == 1 && (weights.empty() || split.lone_prefix_is_plain))
    return plain(split, prefixes[0], split.samples);
  return weights.empty() ? unweighted(split) : weighted(split);
}

}  // namespace tera
