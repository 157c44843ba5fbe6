#include "tera/data/dealer.h"

#include "tera/base/error.h"

namespace tera {

Dealer::Dealer(const Options& options) : options_(options) {
  require(options.steps > 0 && options.micro_batch_size > 0 && options.replica >= 0 &&
              options.replica < options.deal.replicas && options.rank >= 0 && options.rank < options.deal.ranks,
          "rank {} of {} in replica {} of {}", options.rank, options.deal.ranks, options.replica,
          options.deal.replicas);
  steps_.reserve(options.steps);
  for (std::size_t i = 0; i < options.steps; ++i) steps_.emplace_back(options.deal);
}

const Dealer::Step& Dealer::step(BatchLoader& loader, std::int64_t consumed, std::int64_t samples) {
  const std::lock_guard lock(mutex_);
  for (const Step& step : steps_)
    if (step.consumed_ == consumed) return step;
  Step& step = steps_[next_ % steps_.size()];
  step.consumed_ = -1;  // whatever throws below, nobody takes it for whole
  step.documents_.clear();
  step.counts_ = loader.measure(consumed, samples, step.documents_);
  const std::int64_t together = options_.micro_batch_size * options_.deal.replicas;
  step.dealt_.clear();
  for (const DocumentPlace& document : step.documents_)
    step.dealt_.push_back({.rows = document.rows, .sequence = (document.place - consumed) / options_.micro_batch_size});
  step.deal_.deal(step.dealt_, samples / together);
  step.consumed_ = consumed;
  ++next_;  // only now: whoever fails, and tries again, takes no other step's place
  return step;
}

Dealer::Filled Dealer::fill(BatchLoader& loader, const Step& step, std::int64_t microbatch,
                            const BatchSpans& room) const {
  const DocumentDeal& deal = step.deal_;
  const std::int64_t rows = deal.degree(microbatch, options_.replica) * options_.deal.rows;
  BatchSpans out = room.first(static_cast<std::size_t>(rows));
  const BatchCounts counts =
      loader.fill(step.documents_, deal.documents(microbatch, options_.replica, options_.rank), out);
  out.offsets = out.offsets.first(static_cast<std::size_t>(counts.documents + 1));
  return {out, counts};
}

}  // namespace tera
