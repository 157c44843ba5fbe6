#pragma once
// A stream that only copies, between the GPU and pinned memory of the host, beside the stream that computes.

#include <vector>

#include "tera/backend/cuda/event_source.h"
#include "tera/ops/copy.h"

namespace tera::cuda {

class CopyStream final : public Timeline, public EventSource {
 public:
  CopyStream();
  ~CopyStream() override;
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  void wait(Ticket ticket);  // before all later copies; of a point on a GPU's timeline, or one passed long ago
  CopyPoints copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
  void reserve_tickets(std::size_t count);  // so many can be told apart for milliseconds

  void finish(std::uint64_t id) override;
  // Of an old point it is the event of a later one, which stands for both.
  cudaEvent_t event_of(std::uint64_t id) const override { return events_[id % events_.size()]; }

 private:
  Ticket record();

  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> events_;  // a ticket's is at id modulo their number
  std::uint64_t tickets_ = 0;
};

}  // namespace tera::cuda
