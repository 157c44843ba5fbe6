#pragma once
// Pinned memory through which copies to the GPU pass, so that the caller's bytes may be reused at once and the host
// waits only when the ring is full of copies in flight.

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <span>

#include "tera/backend/cuda/runtime/event_source.h"

namespace tera::cuda {

class StagingRing {
 public:
  StagingRing();
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  void copy(std::span<const std::byte> host, void* device, cudaStream_t stream, WaitGuard* guard = nullptr);

 private:
  static constexpr std::size_t slot_bytes = std::size_t{4} << 20;
  static constexpr std::size_t slots = 4;

  std::span<std::byte> reserve(std::size_t bytes, cudaStream_t stream, WaitGuard* guard);

  std::byte* memory_ = nullptr;
  std::array<cudaEvent_t, slots> done_{};  // the copies out of a slot have completed
  std::size_t slot_ = 0, used_ = 0;        // the current slot, and its used bytes
};

}  // namespace tera::cuda
