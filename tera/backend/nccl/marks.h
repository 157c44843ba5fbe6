#pragma once
// Points on streams that can be told apart and timed, however many there are: for profiles only.

#include <vector>

#include "tera/backend/cuda/event_source.h"
#include "tera/ops/ticket.h"

namespace tera::nccl {

class Marks final : public Timeline, public cuda::EventSource {
 public:
  Marks() = default;
  ~Marks() override;
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  Ticket mark(cudaStream_t stream);  // behind what is on it
  void clear() { used_ = 0; }        // tickets from before mean nothing any more

  void finish(std::uint64_t id) override;
  cudaEvent_t event_of(std::uint64_t id) const override { return events_[id - 1]; }

 private:
  std::vector<cudaEvent_t> events_;
  std::size_t used_ = 0;
};

}  // namespace tera::nccl
