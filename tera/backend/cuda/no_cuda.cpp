// Stands in for cuda_info.cpp where the program is built without CUDA.
#include "tera/backend/cuda/cuda_info.h"

namespace tera::cuda {

std::string toolkit_version() { return {}; }

CudaInfo query_cuda() {
  CudaInfo info;
  info.problem = "not built in";
  return info;
}

}  // namespace tera::cuda
