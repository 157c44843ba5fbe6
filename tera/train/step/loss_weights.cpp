#include "tera/train/step/loss_weights.h"

namespace tera {

void LossWeights::bind(Arena& arena, std::int64_t microbatches, bool scaled) {
  microbatches_ = microbatches;
  const Shape all = shape(kinds_ * microbatches);
  plain_ = scaled_ = arena.take(all, DType::f32, "loss weights");
  if (scaled) scaled_ = arena.take(all, DType::f32, "scaled loss weights");
}

void LossWeights::set(Ops& ops, std::int64_t kind, std::int64_t microbatch, float weight) const {
  const std::int64_t row = kind * microbatches_ + microbatch;
  ops.from_host(std::as_bytes(std::span(&weight, 1)), plain_.rows(row, row + 1));
}

Tensor LossWeights::weight(std::int64_t kind, std::int64_t microbatch) const {
  const std::int64_t row = kind * microbatches_ + microbatch;
  return scaled_.rows(row, row + 1);
}

}  // namespace tera
