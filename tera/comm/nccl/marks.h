#pragma once
// CUDA events with timing, in any number: for profiles only.

#include <vector>

#include "tera/backend/cuda/runtime/event_source.h"
#include "tera/ops/ticket.h"

namespace tera::nccl {

class TimingEvents final : public Timeline, public cuda::EventSource {
 public:
  TimingEvents() = default;
  ~TimingEvents() override;
  TimingEvents(const TimingEvents&) = delete;
  TimingEvents& operator=(const TimingEvents&) = delete;

  Ticket mark(cudaStream_t stream);  // after all work on the stream so far
  void clear() { used_ = 0; }        // invalidates all tickets

  void finish(std::uint64_t id) override;
  cudaEvent_t event_of(std::uint64_t id) const override { return events_[id - 1]; }

 private:
  std::vector<cudaEvent_t> events_;
  std::size_t used_ = 0;
};

}  // namespace tera::nccl
