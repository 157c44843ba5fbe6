#pragma once
// What dispatching rows to experts tells the host: the row offsets of the all-to-all dispatcher, and whether rows
// exceeded the capacity of experts, which ends the run.

#include "tera/config/setup.h"
#include "tera/train/rank_layout.h"
#include "tera/train/step/step_feature.h"

namespace tera {

class ExpertDispatch final : public StepFeature {
 public:
  ExpertDispatch(const Setup& setup, const RankLayout& layout);  // MoE models only
  void describe(StepBoard& board) override;
  void allocate_host(Device& device) override;
  void attach(std::int64_t index, MicroBatch& batch) override;
  void read(const StepReading& reading, StepScalars::When of) override;

 private:
  const Setup& setup_;
  StepBoard* board_ = nullptr;
  std::int64_t offsets_;  // numbers of row offsets; 0: the dispatcher needs none
  bool may_overflow_;
  std::size_t overflow_ = 0;              // id
  std::span<std::int32_t> host_offsets_;  // that the device writes
};

}  // namespace tera
