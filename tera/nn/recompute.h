#pragma once
// Activation recomputation (checkpointing): a block around a block that keeps nothing between F and B but x, and runs
// the inner forward again in B. No other code knows of it.

#include "tera/nn/block.h"

namespace tera {

struct RecomputeSaved final : Saved {
  std::unique_ptr<Saved> inner;
};

class Recompute final : public BlockOf<RecomputeSaved> {
 public:
  explicit Recompute(std::unique_ptr<Block> inner) : inner_(std::move(inner)) {}
  std::unique_ptr<Saved> make_saved() const override;
  const char* kind() const override { return "recompute"; }

 private:
  void f(Run& run, RecomputeSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, RecomputeSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, RecomputeSaved& saved, const Tensor& dy) override;

  std::unique_ptr<Block> inner_;
};

}  // namespace tera
