// Streams: making them, putting work on them, waiting for them.
#include <algorithm>
#include <utility>

#include "tools/cuda_on_cpu/runtime.h"
#include "tools/cuda_on_cpu/stop.h"
#include "tools/cuda_on_cpu/stream.h"

namespace cuda_on_cpu {
namespace {

constexpr int least_priority = 0, greatest_priority = -5;

// Legacy default stream: it begins when all earlier work of blocking streams is done; they continue after its work.
void add_order_of_default_stream(const CUstream_st& stream, std::vector<Point>& after) {
  const auto add = [&](CUstream_st& other) {
    if (Point end = end_of(other); !end.reached()) after.push_back(std::move(end));
  };
  if (!stream.blocking) return;
  CUstream_st& first = default_stream(stream.device);
  if (&stream != &first) return add(first);
  for (const auto& other : machine().streams)
    if (other->blocking && other->device == stream.device && other.get() != &stream) add(*other);
}

// A blocking stream that is captured cannot be waited for by the default stream.
CUstream_st* captured_before(const CUstream_st& stream) {
  if (&stream != &default_stream(stream.device)) return nullptr;
  for (const auto& other : machine().streams)
    if (other->capture && other->blocking && other->device == stream.device) return other.get();
  return nullptr;
}

cudaError_t create(cudaStream_t* stream, unsigned flags) {
  if (!stream || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)) return fail(cudaErrorInvalidValue);
  const Lock lock = lock_machine();
  Machine& all = machine();
  all.streams.push_back(
      std::make_shared<CUstream_st>(all.streams_made++, current_device(), flags == cudaStreamDefault));
  *stream = all.streams.back().get();
  return cudaSuccess;
}

CUstream_st& stream_or_stop(cudaStream_t stream) {
  CUstream_st* const found = find_stream(stream);
  if (!found) stop("work for a stream that does not exist");
  return *found;
}

}  // namespace

CUstream_st& default_stream(int device) { return *machine().streams[static_cast<std::size_t>(device)]; }

CUstream_st* find_stream(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return &default_stream(current_device());
  for (const auto& known : machine().streams)
    if (known.get() == stream) return known->destroyed ? nullptr : known.get();
  return nullptr;
}

Point end_of(CUstream_st& stream) { return {stream.shared_from_this(), stream.enqueued}; }

std::vector<Point> ends_of(int device) {
  std::vector<Point> ends;
  for (const auto& stream : machine().streams)
    if (stream->device == device) ends.push_back(end_of(*stream));
  return ends;
}

cudaError_t append(CUstream_st& stream, Work work, Point* end) {
  if (CUstream_st* const other = captured_before(stream)) return invalidate(*other, cudaErrorStreamCaptureImplicit);
  if (stream.capture) {
    if (stream.capture->invalid) return fail(cudaErrorStreamCaptureInvalidated);
    stream.capture->nodes.push_back(std::move(work.step));
    return cudaSuccess;
  }
  add_order_of_default_stream(stream, work.after);
  stream.work.push_back(std::move(work));
  ++stream.enqueued;
  if (end) *end = end_of(stream);
  return cudaSuccess;
}

cudaError_t enqueue(Lock& lock, CUstream_st& stream, Step step) {
  const cudaError_t status = append(stream, {std::move(step)});
  progress_after_append(lock);
  return status;
}

cudaError_t enqueue_host(cudaStream_t stream, std::function<void()> work) {
  Lock lock = lock_machine();
  return enqueue(lock, stream_or_stop(stream), [work = std::move(work)] {
    work();
    return true;
  });
}

cudaError_t enqueue_steps(cudaStream_t stream, std::function<bool()> step) {
  Lock lock = lock_machine();
  CUstream_st& found = stream_or_stop(stream);
  if (found.capture) return invalidate(found, cudaErrorStreamCaptureUnsupported);
  return enqueue(lock, found, std::move(step));
}

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create(stream, cudaStreamDefault); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return create(stream, flags); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) { return create(stream, flags); }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = least_priority;
  if (greatest) *greatest = greatest_priority;
  return cudaSuccess;
}

// Its work is still done, when somebody waits for the device or for an event.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock = lock_machine();
  CUstream_st* const found = find_stream(stream);
  if (!stream || !found || found == &default_stream(found->device)) return fail(cudaErrorInvalidResourceHandle);
  found->destroyed = true;
  found->capture.reset();
  if (found->work.empty()) std::erase_if(machine().streams, [&](const auto& known) { return known.get() == found; });
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Lock lock = lock_machine();
  CUstream_st* const found = find_stream(stream);
  if (!found) return fail(cudaErrorInvalidResourceHandle);
  if (found->capture) return invalidate(*found, cudaErrorStreamCaptureUnsupported);
  if (CUstream_st* const other = captured_before(*found)) return invalidate(*other, cudaErrorStreamCaptureImplicit);
  std::vector<Point> ends{end_of(*found)};
  if (found == &default_stream(found->device))  // which would wait for all blocking ones
    for (const auto& other : machine().streams)
      if (other->blocking && other->device == found->device) ends.push_back(end_of(*other));
  wait_until(lock, ends);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Lock lock = lock_machine();
  CUstream_st* const found = find_stream(stream);
  if (!found) return fail(cudaErrorInvalidResourceHandle);
  if (found->capture) return invalidate(*found, cudaErrorStreamCaptureUnsupported);
  const Point end = end_of(*found);
  progress_towards(lock, {&end, 1});
  return end.reached() ? cudaSuccess : fail(cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize() {
  Lock lock = lock_machine();
  const int device = current_device();
  if (const cudaError_t status = refuse_if_device_captured(device); status != cudaSuccess) return status;
  wait_until(lock, ends_of(device));
  return cudaSuccess;
}

}  // extern "C"

}  // namespace cuda_on_cpu
