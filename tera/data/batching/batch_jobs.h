#pragma once
// Lists the microbatches that a rank reads, one after the other. Pure arithmetic on the samples consumed.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tera/config/setup.h"

namespace tera {

struct BatchJob {
  std::size_t source = 0;       // index of the dataset
  std::int64_t consumed = 0;    // samples before its global batch
  std::int64_t samples = 0;     // size of its global batch
  std::int64_t microbatch = 0;  // its index on this rank in the global batch
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
    BatchShape batch;
  };
  explicit TrainJobs(const Options& options) : options_(options) {}
  std::optional<BatchJob> next() override {
    if (options_.steps == 0) return {};
    const std::int64_t consumed = options_.consumed, samples = options_.batch.global_batch_at(consumed);
    const BatchJob job{.consumed = consumed, .samples = samples, .microbatch = microbatch_};
    // Dynamic context parallelism: the number of microbatches is known when a step is read, so the maximum is listed.
    const std::int64_t dynamic = options_.batch.max_dynamic_microbatches;
    if (++microbatch_ == (dynamic > 0 ? dynamic : options_.batch.microbatches_at(consumed))) {
      microbatch_ = 0;
      --options_.steps;
      options_.consumed += samples;
    }
    return job;
  }

 private:
  Options options_;
  std::int64_t microbatch_ = 0;
};

// Endless evaluations, all alike: the first global batches of one source after the other.
class EvaluationJobs final : public BatchJobs {
 public:
  struct Options {
    std::vector<std::int64_t> batches;  // global batches of each source, at least one in all
    BatchShape batch;
  };
  explicit EvaluationJobs(Options options) : options_(std::move(options)) {}
  std::optional<BatchJob> next() override {
    while (batch_ == options_.batches[source_]) {
      batch_ = 0;
      source_ = (source_ + 1) % options_.batches.size();
    }
    const std::int64_t samples = options_.batch.global_batch;
    const BatchJob job{.source = source_, .consumed = batch_ * samples, .samples = samples, .microbatch = microbatch_};
    if (++microbatch_ == options_.batch.num_microbatches) {
      microbatch_ = 0;
      ++batch_;
    }
    return job;
  }

 private:
  Options options_;
  std::size_t source_ = 0;
  std::int64_t batch_ = 0, microbatch_ = 0;
};

}  // namespace tera
