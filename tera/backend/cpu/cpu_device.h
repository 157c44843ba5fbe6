#pragma once
#include <vector>

#include "tera/tensor/device.h"

namespace tera::cpu {

// Memory from mmap, zeroed, on huge pages where the system gives them.
class CpuDevice final : public Device {
 public:
  CpuDevice() = default;
  ~CpuDevice() override;
  CpuDevice(const CpuDevice&) = delete;
  CpuDevice& operator=(const CpuDevice&) = delete;

  std::span<std::byte> allocate(std::size_t bytes) override;
  std::span<std::byte> allocate_host(std::size_t bytes) override { return allocate(bytes); }
  bool is_host() const override { return true; }
  std::size_t available() const override;

 private:
  std::vector<std::span<std::byte>> slabs_;
};

}  // namespace tera::cpu
