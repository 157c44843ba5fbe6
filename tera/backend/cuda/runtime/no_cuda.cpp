// Stands in for cuda_info.cpp and make_cuda.cpp where the program is built without CUDA.
#include <unistd.h>

#include "tera/backend/cuda/runtime/cuda_info.h"
#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/base/error.h"

namespace tera::cuda {

std::string toolkit_version() { return {}; }

CudaLibraries query_libraries() { return {}; }

CudaInfo query_cuda(std::optional<int>) {
  CudaInfo info;
  info.problem = "not built in";
  return info;
}

bool usable() { return false; }

std::string why_left_aside() {
  const bool driver = ::access("/proc/driver/nvidia/version", F_OK) == 0;
  return driver ? "this program was built without CUDA" : "";
}

int device_of(int) { return 0; }

CudaParts make_cuda(const CudaOptions&) {
  fail_user("dist.device=cuda: this program was built without CUDA; dist.device=cpu (--device cpu) runs without a GPU");
}

}  // namespace tera::cuda
