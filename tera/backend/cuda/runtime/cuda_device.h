#pragma once
#include <vector>

#include "tera/tensor/device.h"

namespace tera::cuda {

// Memory of one GPU by plain cudaMalloc, zeroed; host memory that it can read and write directly (pinned).
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::span<std::byte> allocate(std::size_t bytes) override;
  std::span<std::byte> allocate_host(std::size_t bytes) override;
  bool is_host() const override { return false; }
  std::size_t available() const override;
  std::size_t host_available() const override;

 private:
  int index_;
  std::vector<void*> slabs_, pinned_;
};

}  // namespace tera::cuda
