#pragma once
// What queues on a GPU and those who move tensors between GPUs know of each other.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tera::cuda {

// A timeline whose points are events: a stream can wait for them without the host. Null: passed long ago.
struct EventSource {
  virtual ~EventSource() = default;
  virtual cudaEvent_t event_of(std::uint64_t id) const = 0;
};

// Asked again and again while the host waits for the GPU, and once more when what it waited for is there. Throws where
// that will not come, or came about without ranks that had to do their part.
struct WaitGuard {
  virtual ~WaitGuard() = default;
  virtual void check() = 0;
};

// The host waits for the event, if there is one.
void wait_on_host(cudaEvent_t event, WaitGuard* guard, const char* what);
// The stream does.
void wait_on_stream(cudaStream_t stream, cudaEvent_t event);

}  // namespace tera::cuda
