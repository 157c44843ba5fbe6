#include "tera/comm/nccl/marks.h"

#include "tera/backend/cuda/runtime/cuda_error.h"

namespace tera::nccl {

TimingEvents::~TimingEvents() {
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

Ticket TimingEvents::mark(cudaStream_t stream) {
  if (used_ == events_.size()) {
    cudaEvent_t event = nullptr;
    cuda::check(cudaEventCreate(&event), "cudaEventCreate");
    events_.push_back(event);
  }
  cuda::check(cudaEventRecord(events_[used_++], stream), "cudaEventRecord");
  return {used_, this};
}

void TimingEvents::finish(std::uint64_t id) {
  if (id != 0) cuda::check(cudaEventSynchronize(event_of(id)), "a call between ranks");
}

}  // namespace tera::nccl
