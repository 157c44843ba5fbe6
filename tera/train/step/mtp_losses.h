#pragma once
// Multi-token prediction in a step: the weights and sums of the MTP losses of each depth. Only the rank with the last
// virtual stage has MTP layers, which read the rows of each depth.

#include <array>
#include <vector>

#include "tera/train/rank_layout.h"
#include "tera/train/step/step_feature.h"

namespace tera {

class MtpLosses final : public StepFeature {
 public:
  MtpLosses(const Setup& setup, const RankLayout& layout);
  void describe(StepBoard& board) override;
  void bind(const FeatureArenas& arenas) override;
  void attach(std::int64_t index, MicroBatch& batch) override;
  void load(Ops& ops, const LoadedMicroBatch& loaded) override;
  void after_backward(const StepRun& run) override;
  void report(const StepReading& reading, const ReportedStep& step, MetricList& metrics) override;

 private:
  StepBoard* board_ = nullptr;
  std::int64_t depths_, rows_, microbatches_;
  bool has_loss_, counts_;
  std::int64_t kind_ = 0;                    // kind of loss of the first depth
  std::size_t sums_ = 0;                     // id
  std::vector<std::vector<Tensor>> losses_;  // f32 [T], by depth and microbatch
  std::vector<std::vector<MtpRows>> mtp_;    // by microbatch and depth
  std::array<double, max_mtp_layers> means_{};
};

}  // namespace tera
