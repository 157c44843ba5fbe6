// Events: points of streams, and when they were reached.
#include <chrono>

#include "tools/cuda_on_cpu/runtime.h"

namespace cuda_on_cpu {
namespace {

double milliseconds_now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

cudaError_t record_in_stream(Lock& lock, CUevent_st& event, CUstream_st& stream) {
  auto reached = std::make_shared<double>();
  Point end;
  const auto step = [reached] {
    *reached = milliseconds_now();
    return true;
  };
  if (const cudaError_t status = append(stream, {step}, &end); status != cudaSuccess) return status;
  event.recorded = std::move(end);
  event.milliseconds = std::move(reached);
  event.captured = 0;
  progress_after_append(lock);
  return cudaSuccess;
}

// Within a capture the nodes of one stream are in order anyhow. A second stream, which would join it by the wait, and
// points outside of the capture are refused; a GPU allows the former.
cudaError_t wait_in_capture(CUstream_st& stream, const CUevent_st& event) {
  if (stream.capture->invalid) return fail(cudaErrorStreamCaptureInvalidated);
  if (event.captured == stream.capture->id) return cudaSuccess;
  if (event.captured != 0) return invalidate(stream, cudaErrorNotSupported);
  return event.milliseconds ? invalidate(stream, cudaErrorStreamCaptureIsolation) : cudaSuccess;
}

}  // namespace
extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  constexpr unsigned known = cudaEventBlockingSync | cudaEventDisableTiming;
  if (!event || (flags & ~known) != 0) return fail(cudaErrorInvalidValue);
  *event = new CUevent_st{.device = current_device(), .times = (flags & cudaEventDisableTiming) == 0};
  return cudaSuccess;
}

// The record that is still on a stream has what it needs.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!event) return fail(cudaErrorInvalidResourceHandle);
  const Lock lock = lock_machine();
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Lock lock = lock_machine();
  CUstream_st* const found = find_stream(stream);
  if (!event || !found || event->device != found->device) return fail(cudaErrorInvalidResourceHandle);
  if (!found->capture) return record_in_stream(lock, *event, *found);
  if (found->capture->invalid) return fail(cudaErrorStreamCaptureInvalidated);
  event->captured = found->capture->id;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  Lock lock = lock_machine();
  CUstream_st* const found = find_stream(stream);
  if (!event || !found) return fail(cudaErrorInvalidResourceHandle);
  if (flags != cudaEventWaitDefault) return fail(cudaErrorInvalidValue);
  if (found->capture) return wait_in_capture(*found, *event);
  if (event->captured != 0) return fail(cudaErrorNotSupported);  // the stream would join the capture
  const auto nothing = [] { return true; };
  const cudaError_t status = append(*found, {nothing, {event->recorded}});
  progress_after_append(lock);
  return status;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Lock lock = lock_machine();
  if (!event) return fail(cudaErrorInvalidResourceHandle);
  if (event->captured != 0) return fail(cudaErrorCapturedEvent);
  if (const cudaError_t status = refuse_if_capturing(); status != cudaSuccess) return status;
  const Point recorded = event->recorded;
  wait_until(lock, {&recorded, 1});
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Lock lock = lock_machine();
  if (!event) return fail(cudaErrorInvalidResourceHandle);
  if (event->captured != 0) return fail(cudaErrorCapturedEvent);
  if (const cudaError_t status = refuse_if_capturing(); status != cudaSuccess) return status;
  const Point recorded = event->recorded;
  progress_towards(lock, {&recorded, 1});  // without this, a host that only polls would poll for ever
  return recorded.reached() ? cudaSuccess : fail(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const Lock lock = lock_machine();
  if (!milliseconds) return fail(cudaErrorInvalidValue);
  if (!begin || !end || begin->device != end->device) return fail(cudaErrorInvalidResourceHandle);
  for (const CUevent_st* event : {begin, end}) {
    if (event->captured != 0) return fail(cudaErrorCapturedEvent);
    if (!event->times || !event->milliseconds) return fail(cudaErrorInvalidResourceHandle);
  }
  if (!begin->recorded.reached() || !end->recorded.reached()) return fail(cudaErrorNotReady);
  *milliseconds = static_cast<float>(*end->milliseconds - *begin->milliseconds);
  return cudaSuccess;
}

}  // extern "C"

}  // namespace cuda_on_cpu
