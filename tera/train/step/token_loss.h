#pragma once
// The loss of a step or an evaluation: the sum of its tokens' losses over all microbatches and ranks.

#include <vector>

#include "tera/train/rank_layout.h"
#include "tera/train/step/step_feature.h"

namespace tera {

class TokenLoss final : public StepFeature {
 public:
  TokenLoss(const Setup& setup, const RankLayout& layout);
  void describe(StepBoard& board) override;
  void bind(const FeatureArenas& arenas) override;
  void attach(std::int64_t index, MicroBatch& batch) override;
  void load(Ops& ops, const LoadedMicroBatch& loaded) override;
  void after_backward(const StepRun& run) override { add_up(run); }
  void after_evaluation(const StepRun& run) override { add_up(run); }

 private:
  void add_up(const StepRun& run) const;

  StepBoard* board_ = nullptr;
  std::int64_t rows_, microbatches_;
  bool counts_;
  std::int64_t kind_ = 0;
  std::size_t sum_ = 0;         // id
  std::vector<Tensor> losses_;  // f32 [T], by microbatch
};

// out f64 [1]: the sum of the losses; 0 on ranks without a loss, or with the same one as another rank.
void sum_losses(Ops& ops, bool counts, std::span<const Tensor> losses, const Tensor& out);

}  // namespace tera
