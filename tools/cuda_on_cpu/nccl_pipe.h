#pragma once
// A single-producer single-consumer ring buffer of bytes in shared memory: one process writes, another reads. Zeroed
// memory is an empty one.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cuda_on_cpu::nccl {

class Pipe {
 public:
  static constexpr std::size_t capacity = std::size_t{64} << 10;

  // Writes as many bytes as there is capacity for; returns how many.
  std::size_t write(const std::byte* from, std::size_t bytes) {
    const std::uint64_t begin = written_.load(std::memory_order_relaxed);
    bytes = std::min(bytes, capacity - static_cast<std::size_t>(begin - read_.load(std::memory_order_acquire)));
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t at = (begin + done) % capacity, part = std::min(bytes - done, capacity - at);
      std::memcpy(bytes_ + at, from + done, part);
      done += part;
    }
    if (bytes > 0) written_.store(begin + bytes, std::memory_order_release);
    return bytes;
  }
  // The contiguous bytes that can be read.
  std::span<const std::byte> peek() const {
    const std::uint64_t begin = read_.load(std::memory_order_relaxed);
    const std::size_t at = begin % capacity;
    const auto there = static_cast<std::size_t>(written_.load(std::memory_order_acquire) - begin);
    return {bytes_ + at, std::min(there, capacity - at)};
  }
  void take(std::size_t bytes) {
    read_.store(read_.load(std::memory_order_relaxed) + bytes, std::memory_order_release);
  }
  // Everything that was written has been taken.
  bool empty() const { return read_.load(std::memory_order_acquire) == written_.load(std::memory_order_relaxed); }

 private:
  alignas(64) std::atomic<std::uint64_t> written_;
  alignas(64) std::atomic<std::uint64_t> read_;
  alignas(64) std::byte bytes_[capacity];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share them");

}  // namespace cuda_on_cpu::nccl
