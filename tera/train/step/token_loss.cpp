#include "tera/train/step/token_loss.h"

#include "tera/ops/copy.h"
#include "tera/ops/loss.h"
#include "tera/train/step/batch_inputs.h"

namespace tera {

TokenLoss::TokenLoss(const Setup& setup, const RankLayout& layout)
    : StepFeature(FeatureOrder::token_loss),
      rows_(rows_of_rank(setup)),
      microbatches_(setup.batch.largest_step()),
      counts_(layout.counts_loss) {}

void TokenLoss::describe(StepBoard& board) {
  board_ = &board;
  kind_ = board.weights.add(1);
  sum_ = board.scalars.add({.name = "loss_sum", .in_evaluation = true});
}

void TokenLoss::bind(const FeatureArenas& arenas) {
  losses_.clear();
  for (std::int64_t i = 0; i < microbatches_; ++i)
    losses_.push_back(arenas.inputs.take(shape(rows_), DType::f32, "token losses"));
}

void TokenLoss::attach(std::int64_t index, MicroBatch& batch) {
  batch.token_loss = losses_.at(static_cast<std::size_t>(index));
  batch.loss_scale = board_->weights.weight(kind_, index);
}

void TokenLoss::load(Ops& ops, const LoadedMicroBatch& loaded) {
  board_->weights.set(ops, kind_, loaded.index, loaded.scale);
}

void TokenLoss::add_up(const StepRun& run) const {
  sum_losses(run.ops, counts_, std::span(losses_).first(static_cast<std::size_t>(run.microbatches)),
             board_->scalars.slot(sum_));
}

void sum_losses(Ops& ops, bool counts, std::span<const Tensor> losses, const Tensor& out) {
  if (!counts) return ops(FillArgs{.out = out, .value = 0});
  for (const Tensor& loss : losses) ops(SumArgs{.x = loss, .out = out, .accumulate = &loss != losses.data()});
}

}  // namespace tera
