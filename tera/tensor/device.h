#pragma once
// Where memory comes from. Allocation happens only while a plan is bound, never in a step.

#include <cstddef>
#include <span>

namespace tera {

class Device {
 public:
  virtual ~Device() = default;
  // Zeroed, aligned to at least Arena::alignment, owned by the device and freed with it.
  virtual std::span<std::byte> allocate(std::size_t bytes) = 0;
  // Memory of the host that the device reads and writes directly; owned and freed like the other.
  virtual std::span<std::byte> allocate_host(std::size_t bytes) = 0;
  virtual bool is_host() const = 0;           // its memory can be read and written from here
  virtual std::size_t available() const = 0;  // bytes that can still be had; a plan that does not fit is refused
  virtual std::size_t host_available() const { return available(); }  // likewise of the host
};

}  // namespace tera
