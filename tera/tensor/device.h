#pragma once
// The allocator of slabs on a device. Allocation happens only while a plan is bound, never in a step.

#include <cstddef>
#include <span>

namespace tera {

class Device {
 public:
  virtual ~Device() = default;
  // Zeroed, aligned to at least Arena::alignment, owned by the device and freed with it.
  virtual std::span<std::byte> allocate(std::size_t bytes) = 0;
  // Pinned host memory, which the device reads and writes directly; owned by the device and freed with it.
  virtual std::span<std::byte> allocate_host(std::size_t bytes) = 0;
  virtual bool is_host() const = 0;           // its memory is host memory
  virtual std::size_t available() const = 0;  // bytes that can still be allocated; larger plans are refused
  virtual std::size_t host_available() const { return available(); }  // host bytes that can still be allocated
};

}  // namespace tera
