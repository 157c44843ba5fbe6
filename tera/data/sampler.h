#pragma once
// Which sample of a dataset stands at a place of the stream that all replicas read together. Places are samples
// consumed: of each micro_batch_size * data_ranks places the first micro_batch_size are rank 0's, and so on.

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace tera {

// torch.randperm(n, generator=torch.Generator().manual_seed(seed)).
void torch_permutation(std::uint32_t seed, std::span<std::uint32_t> out);

// Megatron-LM's cyclic order: every epoch the samples in another order, without those that fill no microbatch of all
// ranks. Any thread may ask for any place; the orders of two epochs are kept.
class CyclicSampler {
 public:
  struct Options {
    std::int64_t samples = 0;  // of the dataset
    std::int64_t micro_batch_size = 0, data_ranks = 1;
    bool data_sharding = true;  // each rank has its own part of the samples; else all are dealt out in turn
  };
  explicit CyclicSampler(const Options& options);  // UserError when the dataset fills no microbatch of all ranks

  std::int64_t samples_per_epoch() const { return active_; }
  std::int64_t at(std::int64_t place);

 private:
  struct Epoch {
    std::int64_t number = -1;
    std::vector<std::uint32_t> order;
  };
  std::uint32_t entry(std::int64_t epoch, std::int64_t index);

  Options options_;
  std::int64_t active_;
  std::mutex mutex_;  // guards epochs_
  std::array<Epoch, 2> epochs_;
};

}  // namespace tera
