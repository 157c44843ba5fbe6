#include "tera/data/batching/dynamic_cp_loader.h"

#include "tera/base/error.h"

namespace tera {

DynamicCpLoader::DynamicCpLoader(const Options& options) : options_(options) {
  require(options.steps > 0 && options.micro_batch_size > 0 && options.replica >= 0 &&
              options.replica < options.scheduler.replicas && options.rank >= 0 &&
              options.rank < options.scheduler.ranks,
          "rank {} of {} in replica {} of {}", options.rank, options.scheduler.ranks, options.replica,
          options.scheduler.replicas);
  steps_.reserve(options.steps);
  for (std::size_t i = 0; i < options.steps; ++i) steps_.emplace_back(options.scheduler);
}

const DynamicCpLoader::Step& DynamicCpLoader::step(BatchLoader& loader, std::int64_t consumed, std::int64_t samples) {
  const std::lock_guard lock(mutex_);
  for (const Step& step : steps_)
    if (step.consumed_ == consumed) return step;
  Step& step = steps_[next_ % steps_.size()];
  step.consumed_ = -1;  // if anything below throws, the step is not taken for complete
  step.documents_.clear();
  step.counts_ = loader.measure(consumed, samples, step.documents_);
  const std::int64_t together = options_.micro_batch_size * options_.scheduler.replicas;
  step.assigned_.clear();
  for (const DocumentSpan& document : step.documents_)
    step.assigned_.push_back(
        {.rows = document.rows, .sequence = (document.position - consumed) / options_.micro_batch_size});
  step.scheduler_.assign(step.assigned_, samples / together);
  step.consumed_ = consumed;
  ++next_;  // only now: a read that fails, and is tried again, evicts no other step
  return step;
}

DynamicCpLoader::Filled DynamicCpLoader::fill(BatchLoader& loader, const Step& step, std::int64_t microbatch,
                                              const BatchSpans& buffers) const {
  const DynamicCpScheduler& scheduler = step.scheduler_;
  const std::int64_t rows = scheduler.degree(microbatch, options_.replica) * options_.scheduler.rows;
  BatchSpans out = buffers.first(static_cast<std::size_t>(rows));
  const BatchCounts counts =
      loader.fill(step.documents_, scheduler.documents(microbatch, options_.replica, options_.rank), out);
  out.offsets = out.offsets.first(static_cast<std::size_t>(counts.documents + 1));
  return {out, counts};
}

}  // namespace tera
