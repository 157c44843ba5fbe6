#pragma once
// What CUDA this program was built with and which GPUs it can use. Without CUDA, no_cuda.cpp answers.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace tera::cuda {

struct GpuInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  std::size_t memory_bytes = 0;
  std::string problem;  // empty when a kernel of ours ran there and gave the right result
};

struct CudaInfo {
  bool built_in = false;
  std::string toolkit;        // version this program was built with, "13.0"
  std::string architectures;  // those its kernels were compiled for, as CMake names them: "80-real, 90"
  std::string driver;         // newest CUDA version the installed driver serves; empty without a driver
  std::string problem;        // why there are no GPUs to use; empty when there are
  std::vector<GpuInfo> gpus;
};

// Versions of the libraries that would be opened when a GPU is used; empty when not found.
struct CudaLibraries {
  std::string cublaslt, cudnn;
  bool cudnn_built_in = false;  // its headers were there at build time: else it is not looked for
};

// Runs a kernel on every GPU, or on one; others are only listed.
CudaInfo query_cuda(std::optional<int> probe_only = {});
CudaLibraries query_libraries();
std::string toolkit_version();  // empty when built without CUDA; does not call the driver

}  // namespace tera::cuda
