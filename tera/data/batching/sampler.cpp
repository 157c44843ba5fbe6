#include "tera/data/batching/sampler.h"

#include <numeric>
#include <random>
#include <utility>

#include "tera/base/error.h"

namespace tera {

void torch_permutation(std::uint32_t seed, std::span<std::uint32_t> out) {
  std::mt19937 random(seed);  // as torch seeds it
  std::iota(out.begin(), out.end(), 0U);
  for (std::size_t i = 0; i + 1 < out.size(); ++i) std::swap(out[i], out[i + random() % (out.size() - i)]);
}

CyclicSampler::CyclicSampler(const Options& options) : options_(options) {
  constexpr std::int64_t max_samples = std::int64_t{1} << 32;  // torch draws otherwise for more samples
  const std::int64_t batch = options.micro_batch_size, together = batch * options.data_ranks;
  require(batch > 0 && options.data_ranks > 0, "microbatches of {} on {} ranks", batch, options.data_ranks);
  require_user(
      options.samples >= together,
      "dataset.dataloader_type=cyclic: the training data has {} samples, fewer than the {} that one microbatch "
      "of each replica takes",
      options.samples, together);
  require_user(options.samples < max_samples,
               "dataset.dataloader_type=cyclic: {} samples are more than an order is kept of, which is {}; use single",
               options.samples, max_samples - 1);
  active_ = options.samples / together * together;
  const std::int64_t shuffled = options.data_sharding ? active_ / options.data_ranks : options.samples / batch * batch;
  for (Epoch& epoch : epochs_) epoch.order.resize(static_cast<std::size_t>(shuffled));
}

// Epochs are asked for in ascending order, except by threads that are late.
std::uint32_t CyclicSampler::entry(std::int64_t epoch, std::int64_t index) {
  const std::lock_guard lock(mutex_);
  Epoch& kept = epochs_[static_cast<std::size_t>(epoch % 2)];
  if (kept.number != epoch) {
    torch_permutation(static_cast<std::uint32_t>(epoch), kept.order);
    kept.number = epoch;
  }
  return kept.order[static_cast<std::size_t>(index)];
}

std::int64_t CyclicSampler::at(std::int64_t position) {
  require(position >= 0, "there is no place {}", position);
  const std::int64_t batch = options_.micro_batch_size, ranks = options_.data_ranks;
  const std::int64_t epoch = position / active_, rest = position % active_;
  const std::int64_t rank = rest / batch % ranks;
  const std::int64_t number = rest / (batch * ranks) * batch + rest % batch;  // index in the rank's epoch
  if (!options_.data_sharding) return entry(epoch, number * ranks + rank);
  return rank * (active_ / ranks) + entry(epoch, number);
}

}  // namespace tera
