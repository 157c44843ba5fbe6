#pragma once
// Maps a position in the stream of samples that all replicas read together to a sample of the dataset. The position
// counts samples consumed: of each micro_batch_size * data_ranks the first micro_batch_size are rank 0's, and so on.

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace tera {

// torch.randperm(n, generator=torch.Generator().manual_seed(seed)).
void torch_permutation(std::uint32_t seed, std::span<std::uint32_t> out);

// Megatron-LM's cyclic order: every epoch shuffles the samples anew and drops the last ones, which fill no microbatch
// of all ranks. Any thread may ask for any position; the orders of two epochs are kept.
class CyclicSampler {
 public:
  struct Options {
    std::int64_t samples = 0;  // size of the dataset
    std::int64_t micro_batch_size = 0, data_ranks = 1;
    bool data_sharding = true;  // each rank has a shard of the samples; else ranks take them round-robin
  };
  explicit CyclicSampler(const Options& options);  // UserError when the dataset fills no microbatch of all ranks

  std::int64_t samples_per_epoch() const { return active_; }
  std::int64_t at(std::int64_t position);

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
