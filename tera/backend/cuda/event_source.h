#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tera::cuda {

// A timeline on the GPU: other streams wait for its points without the host.
class EventSource {
 public:
  virtual ~EventSource() = default;
  virtual cudaEvent_t event_of(std::uint64_t id) const = 0;
};

}  // namespace tera::cuda
