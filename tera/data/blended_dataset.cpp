#include "tera/data/blended_dataset.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "tera/base/error.h"

namespace tera {
namespace {

// The blend so far: the sequence of samples, and how many each dataset has.
class BlendBuilder {
 public:
  explicit BlendBuilder(std::size_t datasets) : counts_(datasets) {
    require_user(datasets < 32767, "a blend of {} datasets; at most 32766 are possible", datasets);
  }
  // How far the dataset lags behind its weight.
  double lag(double weight, std::size_t dataset) const {
    const auto position = static_cast<double>(std::max<std::size_t>(index_.dataset.size(), 1));
    return weight * position - static_cast<double>(counts_[dataset]);
  }
  std::int64_t take(std::size_t dataset) {
    index_.dataset.push_back(static_cast<std::int16_t>(dataset));
    index_.sample.push_back(counts_[dataset]);
    return ++counts_[dataset];
  }
  void reserve(std::int64_t size) {
    index_.dataset.reserve(static_cast<std::size_t>(size));
    index_.sample.reserve(static_cast<std::size_t>(size));
  }
  BlendIndex result() && { return std::move(index_); }

 private:
  BlendIndex index_;
  std::vector<std::int64_t> counts_;
};

double sum_of_a_block(std::span<const double> values) {
  std::array<double, 8> lanes;
  std::copy_n(values.begin(), 8, lanes.begin());
  const std::size_t vectorized = values.size() - values.size() % 8;
  for (std::size_t i = 8; i < vectorized; ++i) lanes[i % 8] += values[i];
  double sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  for (std::size_t i = vectorized; i < values.size(); ++i) sum += values[i];
  return sum;
}

}  // namespace

double pairwise_sum(std::span<const double> values) {
  if (values.size() < 8) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
  if (values.size() <= 128) return sum_of_a_block(values);
  const std::size_t half = values.size() / 2, cut = half - half % 8;
  return pairwise_sum(values.first(cut)) + pairwise_sum(values.subspan(cut));
}

std::vector<double> normalized(std::span<const double> weights) {
  const double sum = pairwise_sum(weights);
  std::vector<double> out(weights.begin(), weights.end());
  for (double& weight : out) weight /= sum;
  return out;
}

BlendIndex blend_by_weight(std::span<const double> weights, std::int64_t size) {
  BlendBuilder blend(weights.size());
  blend.reserve(size);
  for (std::int64_t i = 0; i < size; ++i) {
    std::size_t next = 0;
    double max_lag = blend.lag(weights[0], 0);
    for (std::size_t d = 1; d < weights.size(); ++d) {
      const double lag = blend.lag(weights[d], d);
      if (lag > max_lag) next = d, max_lag = lag;
    }
    blend.take(next);
  }
  return std::move(blend).result();
}

BlendIndex blend_all(std::span<const std::int64_t> sizes) {
  BlendBuilder blend(sizes.size());
  std::vector<std::size_t> unspent;
  std::int64_t total = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 0) unspent.push_back(d);
    total += sizes[d];
  }
  blend.reserve(total);
  while (!unspent.empty()) {
    double max_lag = std::numeric_limits<double>::lowest();
    auto next = unspent.begin();
    for (auto d = unspent.begin(); d != unspent.end(); ++d) {
      const double lag = blend.lag(static_cast<double>(sizes[*d]) / static_cast<double>(total), *d);
      if (lag > max_lag) next = d, max_lag = lag;
    }
    if (blend.take(*next) == sizes[*next]) unspent.erase(next);
  }
  return std::move(blend).result();
}

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<Dataset>> datasets, BlendIndex index)
    : datasets_(std::move(datasets)), index_(std::move(index)) {
  std::vector<std::int64_t> used(datasets_.size(), 0);
  for (std::size_t i = 0; i < index_.dataset.size(); ++i) {
    std::int64_t& samples = used.at(static_cast<std::size_t>(index_.dataset[i]));
    samples = std::max(samples, index_.sample[i] + 1);
  }
  for (std::size_t d = 0; d < used.size(); ++d)
    require_user(used[d] <= datasets_[d]->samples(),
                 "the blend takes {} samples of its dataset number {}, which has {}: raise "
                 "dataset.mid_level_dataset_surplus",
                 used[d], d + 1, datasets_[d]->samples());
}

bool BlendedDataset::has_gaps() const {
  return std::ranges::any_of(datasets_, [](const auto& dataset) { return dataset->has_gaps(); });
}

void BlendedDataset::sample(std::int64_t index, std::span<std::int32_t> tokens) const {
  require(index >= 0 && samples() > 0, "sample {} of {}", index, samples());
  const auto i = static_cast<std::size_t>(index % samples());
  datasets_[static_cast<std::size_t>(index_.dataset[i])]->sample(index_.sample[i], tokens);
}

}  // namespace tera
