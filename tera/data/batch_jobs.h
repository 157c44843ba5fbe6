#pragma once
// Which microbatches a rank reads, one after the other. Pure arithmetic: what follows from the samples consumed.

#include <cstdint>
#include <optional>
#include <vector>

namespace tera {

struct BatchJob {
  std::size_t source = 0;       // which of those that are read together
  std::int64_t consumed = 0;    // samples before its global batch
  std::int64_t microbatch = 0;  // of this rank in the global batch
};

class BatchJobs {
 public:
  virtual ~BatchJobs() = default;
  virtual std::optional<BatchJob> next() = 0;  // none after the last
};

// The steps of a run from sample `consumed` on.
class TrainJobs final : public BatchJobs {
 public:
  struct Options {
    std::int64_t consumed = 0, steps = 0;
    std::int64_t global_batch_size = 0, microbatches = 0;  // of a step
  };
  explicit TrainJobs(const Options& options) : options_(options) {}
  std::optional<BatchJob> next() override {
    if (options_.steps == 0) return {};
    const BatchJob job{.consumed = options_.consumed, .microbatch = microbatch_};
    if (++microbatch_ == options_.microbatches) {
      microbatch_ = 0;
      --options_.steps;
      options_.consumed += options_.global_batch_size;
    }
    return job;
  }

 private:
  Options options_;
  std::int64_t microbatch_ = 0;
};

// Evaluations without end, each the same: the first global batches of one dataset after the other.
class EvaluationJobs final : public BatchJobs {
 public:
  struct Options {
    std::vector<std::int64_t> batches;                     // global ones of each dataset, at least one in all
    std::int64_t global_batch_size = 0, microbatches = 0;  // of a global batch
  };
  explicit EvaluationJobs(Options options) : options_(std::move(options)) {}
  std::optional<BatchJob> next() override {
    while (batch_ == options_.batches[dataset_]) {
      batch_ = 0;
      dataset_ = (dataset_ + 1) % options_.batches.size();
    }
    const BatchJob job{.source = dataset_, .consumed = batch_ * options_.global_batch_size, .microbatch = microbatch_};
    if (++microbatch_ == options_.microbatches) {
      microbatch_ = 0;
      ++batch_;
    }
    return job;
  }

 private:
  Options options_;
  std::size_t dataset_ = 0;
  std::int64_t batch_ = 0, microbatch_ = 0;
};

}  // namespace tera
