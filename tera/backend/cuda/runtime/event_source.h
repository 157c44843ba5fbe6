#pragma once
// The interface between queues on a GPU and the communication backends: timelines of CUDA events.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tera::cuda {

// A timeline whose points are events: a stream can wait for them without the host. Null: passed long ago.
struct EventSource {
  virtual ~EventSource() = default;
  virtual cudaEvent_t event_of(std::uint64_t id) const = 0;
};

// Polled while the host waits for the GPU, and once more when the wait has ended. Throws where the wait cannot end
// because a rank failed, or ended without ranks that had to take part.
struct WaitGuard {
  virtual ~WaitGuard() = default;
  virtual void check() = 0;
};

// The host waits for the event, if there is one.
void wait_on_host(cudaEvent_t event, WaitGuard* guard, const char* what);
// The stream waits for the event, if there is one.
void wait_on_stream(cudaStream_t stream, cudaEvent_t event);

}  // namespace tera::cuda
