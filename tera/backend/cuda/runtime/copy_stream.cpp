#include "tera/backend/cuda/runtime/copy_stream.h"

#include "tera/backend/cuda/runtime/cuda_error.h"

namespace tera::cuda {
namespace {

constexpr std::size_t copy_tickets_kept = 64;

}  // namespace

CopyStream::CopyStream() {
  reserve_tickets(copy_tickets_kept);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

CopyStream::~CopyStream() {
  cudaStreamSynchronize(stream_);
  for (auto event : events_) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
}

void CopyStream::reserve_tickets(std::size_t count) {
  if (tickets_ > 0) check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");  // points change their events
  while (events_.size() < count) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    events_.push_back(event);
  }
}

void CopyStream::wait(Ticket ticket) {
  if (ticket.id == 0 || ticket.timeline == this) return;
  const auto* other = dynamic_cast<const EventSource*>(ticket.timeline);
  require(other != nullptr, "a copy stream waits for points of a GPU only");
  wait_on_stream(stream_, other->event_of(ticket.id));
}

Ticket CopyStream::record() {
  ++tickets_;
  check(cudaEventRecord(event_of(tickets_), stream_), "cudaEventRecord");
  return {tickets_, this};
}

CopyPoints CopyStream::copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const Ticket begin = record();
  check(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync");
  return {begin, record()};
}

void CopyStream::finish(std::uint64_t id) {
  if (id != 0) check(cudaEventSynchronize(event_of(id)), "a copy between GPU and host");
}

}  // namespace tera::cuda
