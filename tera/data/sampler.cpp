#include "tera/data/sampler.h"

#include <numeric>
#include <random>
#include <utility>

#include "tera/base/error.h"

namespace tera {

void torch_permutation(std::uint32_t seed, std::span<std::uint32_t> out) {
  std::mt19937 words(seed);  // as torch seeds it
  std::iota(out.begin(), out.end(), 0U);
  for (std::size_t i = 0; i + 1 < out.size(); ++i) std::swap(out[i], out[i + words() % (out.size() - i)]);
}

CyclicSampler::CyclicSampler(const Options& options) : options_(options) {
  constexpr std::int64_t most = std::int64_t{1} << 32;  // beyond, torch draws otherwise
  const std::int64_t batch = options.micro_batch_size, together = batch * options.data_ranks;
  require(batch > 0 && options.data_ranks > 0, "microbatches of {} on {} ranks", batch, options.data_ranks);
  require_user(
      options.samples >= together,
      "dataset.dataloader_type=cyclic: the training data has {} samples, fewer than the {} that one microbatch "
      "of each replica takes",
      options.samples, together);
  require_user(options.samples < most,
               "dataset.dataloader_type=cyclic: {} samples are more than an order is kept of, which is {}; use single",
               options.samples, most - 1);
  active_ = options.samples / together * together;
  const std::int64_t shuffled = options.data_sharding ? active_ / options.data_ranks : options.samples / batch * batch;
  for (Epoch& epoch : epochs_) epoch.order.resize(static_cast<std::size_t>(shuffled));
}

// Epochs are asked for in ascending order, but for threads that are a little behind.
std::uint32_t CyclicSampler::entry(std::int64_t epoch, std::int64_t index) {
  const std::lock_guard lock(mutex_);
  Epoch& kept = epochs_[static_cast<std::size_t>(epoch % 2)];
  if (kept.number != epoch) {
    torch_permutation(static_cast<std::uint32_t>(epoch), kept.order);
    kept.number = epoch;
  }
  return kept.order[static_cast<std::size_t>(index)];
}

std::int64_t CyclicSampler::at(std::int64_t place) {
  require(place >= 0, "there is no place {}", place);
  const std::int64_t batch = options_.micro_batch_size, ranks = options_.data_ranks;
  const std::int64_t epoch = place / active_, rest = place % active_;
  const std::int64_t rank = rest / batch % ranks;
  const std::int64_t number = rest / (batch * ranks) * batch + rest % batch;  // among the rank's own
  if (!options_.data_sharding) return entry(epoch, number * ranks + rank);
  return rank * (active_ / ranks) + entry(epoch, number);
}

}  // namespace tera
