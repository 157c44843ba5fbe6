#include "tera/comm/nccl/channel.h"

#include "tera/backend/cuda/runtime/cuda_error.h"

namespace tera::nccl {

using cuda::check;

Channel::Channel(const NcclApi& api, ncclComm_t comm, std::vector<int> members)
    : api_(api), comm_(comm), members_(std::move(members)), ring_(calls_kept) {
  int least = 0, greatest = 0;  // transfers have priority: computation waits for them
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
  for (Launched& launched : ring_)
    for (cudaEvent_t* event : {&launched.started, &launched.done})
      check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
}

Channel::~Channel() {
  if (comm_ != nullptr) api_.destroy(comm_);
  cudaStreamSynchronize(stream_);
  for (const Launched& launched : ring_)
    for (cudaEvent_t event : {launched.started, launched.done}) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
}

Launched& Channel::begin() {
  Launched& launched = ring_[(calls_ + 1) % ring_.size()];
  check(cudaEventRecord(launched.started, stream_), "cudaEventRecord");
  return launched;
}

std::uint64_t Channel::end() {
  ++calls_;
  check(cudaEventRecord(ring_[calls_ % ring_.size()].done, stream_), "cudaEventRecord");
  return calls_;
}

cudaEvent_t Channel::event_of(std::uint64_t id) const {
  require(id >= 1 && id <= calls_, "ticket {} of a group that has made {} calls", id, calls_);
  return id + ring_.size() > calls_ ? launched(id).done : nullptr;
}

std::uint64_t Channel::first_unfinished() {
  if (finished_ + ring_.size() < calls_) finished_ = calls_ - ring_.size();  // launch() has waited for those before
  for (; finished_ < calls_; ++finished_)
    if (cudaEventQuery(launched(finished_ + 1).done) == cudaErrorNotReady) {
      cudaGetLastError();
      return finished_ + 1;
    }
  return 0;
}

ncclResult_t Channel::async_error() const {
  ncclResult_t error = ncclSuccess;
  if (comm_ != nullptr && api_.async_error(comm_, &error) != ncclSuccess) return ncclInternalError;
  return error == ncclInProgress ? ncclSuccess : error;
}

void Channel::abort() noexcept {
  if (comm_ != nullptr) api_.abort(comm_);
  comm_ = nullptr;
}

}  // namespace tera::nccl
