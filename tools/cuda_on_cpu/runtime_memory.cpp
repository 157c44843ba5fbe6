// Memory of the devices, pinned memory of the host, copies.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tools/cuda_on_cpu/options.h"
#include "tools/cuda_on_cpu/runtime.h"

namespace cuda_on_cpu {
namespace {

constexpr std::size_t device_alignment = 512, host_alignment = 4096;

// Allocates exactly the requested size, so that an address sanitizer has its red zone right after it. All bytes are
// 0xff, NaN in every float type: fresh pages would be zeros, which a program that forgets to write them takes for
// results. That touches all of it, 0.15 s for 512 MB, which the backend does next anyhow: it sets its memory to zero.
void* allocate(std::size_t bytes, std::size_t alignment) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
  return std::memset(memory, 0xff, bytes);
}

void remember(void* memory, Allocation allocation) {
  const Lock lock = lock_machine();
  machine().memory.emplace(reinterpret_cast<std::uintptr_t>(memory), allocation);
}

cudaError_t allocate_on_device(void** memory, std::size_t bytes) {
  const auto device = static_cast<std::size_t>(current_device());
  {
    const Lock lock = lock_machine();
    if (const cudaError_t status = refuse_if_capturing(); status != cudaSuccess) return status;
    std::size_t& used = machine().used[device];
    if (bytes > options().memory_bytes - used) return fail(cudaErrorMemoryAllocation);
    used += bytes;
  }
  *memory = allocate(bytes, device_alignment);
  if (*memory) {
    remember(*memory, {bytes, static_cast<int>(device)});
    return cudaSuccess;
  }
  const Lock lock = lock_machine();
  machine().used[device] -= bytes;
  return fail(cudaErrorMemoryAllocation);
}

// Frees memory, after all devices that may use it are idle.
cudaError_t release(void* memory, bool of_host) {
  Lock lock = lock_machine();
  if (const cudaError_t status = refuse_if_capturing(); status != cudaSuccess) return status;
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const auto found = machine().memory.find(address);
  if (found == machine().memory.end() || (found->second.device == host_memory) != of_host)
    return fail(cudaErrorInvalidValue);
  const Allocation allocation = found->second;
  machine().memory.erase(found);
  if (!of_host) wait_until(lock, ends_of(allocation.device));
  for (int device = 0; of_host && device < options().devices; ++device) wait_until(lock, ends_of(device));
  if (!of_host) machine().used[static_cast<std::size_t>(allocation.device)] -= allocation.bytes;
  lock.unlock();
  std::free(memory);
  return cudaSuccess;
}

enum class MemoryKind { device, pinned, pageable, beyond };

// The kind of memory of these bytes; beyond: they begin in one of our allocations and end after it.
MemoryKind kind_of(const void* begin, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  auto next = machine().memory.upper_bound(address);
  if (next == machine().memory.begin()) return MemoryKind::pageable;
  const auto& [start, allocation] = *--next;
  if (address >= start + allocation.bytes) return MemoryKind::pageable;
  if (address + bytes > start + allocation.bytes) return MemoryKind::beyond;
  return allocation.device == host_memory ? MemoryKind::pinned : MemoryKind::device;
}

// Pinned memory counts as either: a GPU reaches it as well.
bool is_valid_kind(cudaMemcpyKind kind, MemoryKind to, MemoryKind from) {
  if (to == MemoryKind::beyond || from == MemoryKind::beyond) return false;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind == cudaMemcpyDefault) return true;
  if (to_device ? to == MemoryKind::pageable : to == MemoryKind::device) return false;
  return from_device ? from != MemoryKind::pageable : from != MemoryKind::device;
}

// As the runtime of a GPU does it: pageable memory is read before the call returns, and written before it returns.
// Pinned memory is read and written when the stream comes to it. A graph copies from and to the captured addresses.
cudaError_t copy(Lock& lock, CUstream_st& stream, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  const MemoryKind target = kind_of(to, bytes), source = kind_of(from, bytes);
  if (!is_valid_kind(kind, target, source)) return fail(cudaErrorInvalidValue);
  Step step = [to, from, bytes] {
    std::memcpy(to, from, bytes);
    return true;
  };
  if (source == MemoryKind::pageable && !stream.capture) {
    const auto* const begin = static_cast<const std::byte*>(from);
    step = [to, taken = std::vector<std::byte>(begin, begin + bytes)] {
      std::memcpy(to, taken.data(), taken.size());
      return true;
    };
  }
  Point end;
  if (const cudaError_t status = append(stream, {std::move(step)}, &end); status != cudaSuccess) return status;
  progress_after_append(lock);
  if (target == MemoryKind::pageable) wait_until(lock, {&end, 1});
  return cudaSuccess;
}

cudaError_t fill(Lock& lock, CUstream_st& stream, void* to, int value, std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  const MemoryKind kind = kind_of(to, bytes);
  if (kind != MemoryKind::device && kind != MemoryKind::pinned) return fail(cudaErrorInvalidValue);
  return enqueue(lock, stream, [to, value, bytes] {
    std::memset(to, value, bytes);
    return true;
  });
}

}  // namespace
extern "C" {

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (!memory) return fail(cudaErrorInvalidValue);
  *memory = nullptr;
  return bytes == 0 ? cudaSuccess : allocate_on_device(memory, bytes);
}

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) { return cudaMalloc(memory, bytes); }

cudaError_t cudaFree(void* memory) { return memory ? release(memory, false) : cudaSuccess; }

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  constexpr unsigned known = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
  if (!memory || (flags & ~known) != 0) return fail(cudaErrorInvalidValue);
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  {
    const Lock lock = lock_machine();
    if (const cudaError_t status = refuse_if_capturing(); status != cudaSuccess) return status;
  }
  *memory = allocate(bytes, host_alignment);
  if (!*memory) return fail(cudaErrorMemoryAllocation);
  remember(*memory, {bytes, host_memory});
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* memory) { return memory ? release(memory, true) : cudaSuccess; }

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (!free || !total) return fail(cudaErrorInvalidValue);
  const Lock lock = lock_machine();
  *total = options().memory_bytes;
  *free = *total - machine().used[static_cast<std::size_t>(current_device())];
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  Lock lock = lock_machine();
  CUstream_st* const found = find_stream(stream);
  if (!found) return fail(cudaErrorInvalidResourceHandle);
  return copy(lock, *found, to, from, bytes, kind);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  Lock lock = lock_machine();
  if (const cudaError_t status = refuse_if_capturing(); status != cudaSuccess) return status;
  CUstream_st& stream = default_stream(current_device());
  const cudaError_t status = copy(lock, stream, to, from, bytes, kind);
  const Point end = end_of(stream);
  wait_until(lock, {&end, 1});
  return status;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  Lock lock = lock_machine();
  CUstream_st* const found = find_stream(stream);
  if (!found) return fail(cudaErrorInvalidResourceHandle);
  return fill(lock, *found, to, value, bytes);
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  Lock lock = lock_machine();
  if (const cudaError_t status = refuse_if_capturing(); status != cudaSuccess) return status;
  return fill(lock, default_stream(current_device()), to, value, bytes);
}

}  // extern "C"

}  // namespace cuda_on_cpu
