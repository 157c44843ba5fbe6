#include "tera/train/step/step_graph.h"

#include <fmt/core.h>

namespace tera {

void StepGraph::reset(bool wanted, const std::string& why_not) {
  recorded_ = wanted && why_not.empty() ? Recorded::not_yet : Recorded::never;
  recording_.reset();
  ran_full_step_ = false;
  if (wanted && !why_not.empty()) remark_ = "steps run call by call, not as one CUDA graph: " + why_not;
}

void StepGraph::run(Ops& ops, bool full_step, FunctionRef<void()> calls, FunctionRef<void()> remake) {
  if (full_step && ran_full_step_ && recorded_ == Recorded::not_yet) record(ops, calls, remake);
  if (full_step && recording_) return recording_->replay();
  calls();
  ran_full_step_ = ran_full_step_ || full_step;
}

void StepGraph::record(Ops& ops, FunctionRef<void()> calls, FunctionRef<void()> remake) {
  RecordingAttempt attempt = ops.record_calls([&] { calls(); });
  recording_ = std::move(attempt.recording);
  recorded_ = recording_ ? Recorded::yes : Recorded::never;
  if (recording_) {
    remark_ = fmt::format("steps run as one CUDA graph of {} nodes", recording_->size());
  } else {
    remark_ = "steps run call by call, not as one CUDA graph: " + attempt.why_not;
    remake();
  }
}

}  // namespace tera
