#include "tera/train/step/mtp_losses.h"

#include <algorithm>
#include <numeric>

#include "tera/base/error.h"
#include "tera/train/step/batch_inputs.h"
#include "tera/train/step/token_loss.h"

namespace tera {

MtpLosses::MtpLosses(const Setup& setup, const RankLayout& layout)
    : StepFeature(FeatureOrder::mtp),
      depths_(setup.model.mtp_layers),
      rows_(rows_of_rank(setup)),
      microbatches_(setup.batch.largest_step()),
      has_loss_(layout.has_loss),
      counts_(layout.counts_loss) {}

void MtpLosses::describe(StepBoard& board) {
  board_ = &board;
  kind_ = board.weights.add(depths_);
  sums_ = board.scalars.add({.name = "mtp_loss_sums", .count = depths_});
}

void MtpLosses::bind(const FeatureArenas& arenas) {
  losses_.assign(static_cast<std::size_t>(depths_), {});
  mtp_.assign(static_cast<std::size_t>(microbatches_), std::vector<MtpRows>(losses_.size()));
  for (std::int64_t i = 0; has_loss_ && i < microbatches_; ++i) {
    const Tensor all = arenas.inputs.take(shape(depths_, rows_), DType::f32, "token losses ahead");
    for (std::int64_t depth = 0; depth < depths_; ++depth)
      losses_[static_cast<std::size_t>(depth)].push_back(all.rows(depth, depth + 1).view(shape(rows_)));
  }
}

void MtpLosses::attach(std::int64_t index, MicroBatch& batch) {
  if (!has_loss_) return;
  const auto i = static_cast<std::size_t>(index);
  for (std::int64_t depth = 0; depth < depths_; ++depth) {
    const auto of_depth = [&](const Tensor& all) { return all.rows(depth, depth + 1).view(shape(rows_)); };
    const auto k = static_cast<std::size_t>(depth);
    mtp_[i][k] = {.tokens = of_depth(batch.mtp_tokens),
                  .targets = of_depth(batch.mtp_targets),
                  .token_loss = losses_[k][i],
                  .loss_scale = board_->weights.weight(kind_ + depth, index)};
  }
  batch.mtp = mtp_[i];
}

void MtpLosses::load(Ops& ops, const LoadedMicroBatch& loaded) {
  if (loaded.scale == 0 && loaded.mtp_scales.empty()) return;
  const std::int64_t rows = std::ssize(loaded.rows.tokens), tokens = std::ssize(loaded.rows.mtp_tokens),
                     targets = std::ssize(loaded.rows.mtp_targets), scales = std::ssize(loaded.mtp_scales);
  require(scales == depths_ && tokens == depths_ * rows && targets == tokens,
          "a microbatch of {} rows comes with {} scales, {} tokens and {} targets of {} depths ahead", rows, scales,
          tokens, targets, depths_);
  for (std::int64_t depth = 0; depth < depths_; ++depth)
    board_->weights.set(ops, kind_ + depth, loaded.index, loaded.mtp_scales[static_cast<std::size_t>(depth)]);
}

void MtpLosses::after_backward(const StepRun& run) {
  const Tensor sums = board_->scalars.slot(sums_);
  for (std::int64_t depth = 0; depth < depths_; ++depth) {
    const std::span<const Tensor> losses = losses_[static_cast<std::size_t>(depth)];
    sum_losses(run.ops, counts_, counts_ ? losses.first(static_cast<std::size_t>(run.microbatches)) : losses,
               sums.rows(depth, depth + 1));
  }
}

// Means over each depth's targets, of which there are fewer than of the loss.
void MtpLosses::report(const StepReading& reading, const ReportedStep& step, MetricList& metrics) {
  const std::span<double> means = std::span(means_).first(static_cast<std::size_t>(depths_));
  for (std::size_t k = 0; k < means.size(); ++k)
    means[k] = reading.number_at("mtp_loss_sums", k) /
               static_cast<double>(std::max<std::int64_t>(step.counts.mtp_targets[k], 1));
  const double mean = std::accumulate(means.begin(), means.end(), 0.0) / static_cast<double>(means.size());
  metrics.add("mtp_loss", mean, "mtp loss {:.4f}");
  if (means.size() > 1) metrics.add("mtp_losses", std::span<const double>(means));
}

}  // namespace tera
