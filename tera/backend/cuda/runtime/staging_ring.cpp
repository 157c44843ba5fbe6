#include "tera/backend/cuda/runtime/staging_ring.h"

#include <algorithm>
#include <cstring>

#include "tera/backend/cuda/runtime/cuda_error.h"

namespace tera::cuda {

StagingRing::StagingRing() {
  void* pinned = nullptr;
  check(cudaHostAlloc(&pinned, slot_bytes * slots, cudaHostAllocDefault), "cudaHostAlloc");
  memory_ = static_cast<std::byte*>(pinned);
  for (auto& event : done_) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
}

StagingRing::~StagingRing() {
  for (auto event : done_) cudaEventSynchronize(event);
  for (auto event : done_) cudaEventDestroy(event);
  cudaFreeHost(memory_);
}

// Reserves free bytes of the current slot; when it is full, of the next slot, once the copies from there have
// completed.
std::span<std::byte> StagingRing::reserve(std::size_t bytes, cudaStream_t stream, WaitGuard* guard) {
  if (used_ == slot_bytes) {
    check(cudaEventRecord(done_[slot_], stream), "cudaEventRecord");
    slot_ = (slot_ + 1) % slots;
    used_ = 0;
    wait_on_host(done_[slot_], guard, "a copy to the GPU");
  }
  const std::size_t size = std::min(bytes, slot_bytes - used_);
  const std::span<std::byte> free(memory_ + slot_ * slot_bytes + used_, size);
  used_ += size;
  return free;
}

void StagingRing::copy(std::span<const std::byte> host, void* device, cudaStream_t stream, WaitGuard* guard) {
  auto* to = static_cast<std::byte*>(device);
  while (!host.empty()) {
    const std::span<std::byte> staged = reserve(host.size(), stream, guard);
    std::memcpy(staged.data(), host.data(), staged.size());
    check(cudaMemcpyAsync(to, staged.data(), staged.size(), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    to += staged.size();
    host = host.subspan(staged.size());
  }
}

}  // namespace tera::cuda
