#pragma once
// Blends several datasets as Megatron-LM does: each next sample comes from the dataset that lags most behind its
// weight. Nothing is drawn and nothing is shuffled; the samples of each dataset come in its own order.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tera/data/dataset.h"

namespace tera {

struct BlendIndex {
  std::vector<std::int16_t> dataset;  // [N]
  std::vector<std::int64_t> sample;   // [N] its index in that dataset
};

// numpy.sum, whose order of additions decides the last bit, and weights divided by it.
double pairwise_sum(std::span<const double> values);
std::vector<double> normalized(std::span<const double> weights);

BlendIndex blend_by_weight(std::span<const double> weights, std::int64_t size);  // weights that add up to 1
BlendIndex blend_all(std::span<const std::int64_t> sizes);                       // every sample of every dataset

class BlendedDataset final : public Dataset {
 public:
  BlendedDataset(std::vector<std::unique_ptr<Dataset>> datasets, BlendIndex index);
  std::int64_t samples() const override { return static_cast<std::int64_t>(index_.dataset.size()); }
  // Past the end the blend starts over in the same order.
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override;
  bool has_gaps() const override;

 private:
  std::vector<std::unique_ptr<Dataset>> datasets_;
  BlendIndex index_;
};

}  // namespace tera
