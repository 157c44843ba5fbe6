#pragma once
// A stream for copies between the GPU and pinned memory of the host that overlap the compute stream.

#include <vector>

#include "tera/backend/cuda/runtime/event_source.h"
#include "tera/ops/host_copy.h"

namespace tera::cuda {

class CopyStream final : public Timeline, public EventSource {
 public:
  CopyStream();
  ~CopyStream() override;
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  void wait(Ticket ticket);  // orders all later copies after a point on a GPU's timeline, or one passed long ago
  CopyPoints copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
  void reserve_tickets(std::size_t count);  // so many can be distinguished by milliseconds()

  void finish(std::uint64_t id) override;
  // An old point has the event of a later one, which stands for both.
  cudaEvent_t event_of(std::uint64_t id) const override { return events_[id % events_.size()]; }

 private:
  Ticket record();

  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> events_;  // a ring: a ticket's event is at id modulo the size
  std::uint64_t tickets_ = 0;
};

}  // namespace tera::cuda
