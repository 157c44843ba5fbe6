#pragma once
#include <vector>

#include "tera/backend/cpu/cpu_device.h"

namespace tera::test {

// A CPU device that records the sizes requested from it.
class WatchedDevice final : public Device {
 public:
  std::span<std::byte> allocate(std::size_t bytes) override {
    requested.push_back(bytes);
    return device_.allocate(bytes);
  }
  std::span<std::byte> allocate_host(std::size_t bytes) override { return device_.allocate_host(bytes); }
  bool is_host() const override { return true; }
  std::size_t available() const override { return device_.available(); }

  std::vector<std::size_t> requested;

 private:
  cpu::CpuDevice device_;
};

}  // namespace tera::test
