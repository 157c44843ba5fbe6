#pragma once
// What each loss of each microbatch counts in the gradient: one number for each kind of loss and microbatch, in one
// tensor, so that a loss scale multiplies all of them by one call. A kind is declared by the feature whose loss it is.

#include <cstdint>

#include "tera/ops/ops.h"
#include "tera/tensor/arena.h"

namespace tera {

class LossWeights {
 public:
  // At set-up, before bind(). Returns the first of so many kinds.
  std::int64_t add(std::int64_t kinds) {
    const std::int64_t first = kinds_;
    kinds_ += kinds;
    return first;
  }
  void bind(Arena& arena, std::int64_t microbatches, bool scaled);

  void set(Ops& ops, std::int64_t kind, std::int64_t microbatch, float weight) const;
  Tensor weight(std::int64_t kind, std::int64_t microbatch) const;  // f32 [1]: as blocks read it, multiplied

  const Tensor& plain() const { return plain_; }    // f32 [kinds * microbatches]
  const Tensor& scaled() const { return scaled_; }  // multiplied by the loss scale; without one, the same tensor

 private:
  std::int64_t kinds_ = 0, microbatches_ = 0;
  Tensor plain_, scaled_;
};

}  // namespace tera
