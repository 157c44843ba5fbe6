#include "tera/backend/cuda/runtime/make_cuda.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/libraries/cublaslt_api.h"
#include "tera/backend/cuda/runtime/cuda_device.h"
#include "tera/backend/cuda/runtime/cuda_info.h"
#include "tera/backend/cuda/runtime/gpu_facts.h"
#include "tera/base/error.h"

namespace tera::cuda {

bool usable() {
  const CudaInfo info = query_cuda(0);
  return info.problem.empty() && !info.gpus.empty() && info.gpus[0].problem.empty() && !cublaslt_version().empty();
}

std::string why_left_aside() { return why_gpu_is_left_aside(query_cuda(0), query_libraries()); }

int device_of(int local_rank) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 1) return 0;  // make_cuda says what is wrong
  return local_rank % count;
}

CudaParts make_cuda(const CudaOptions& options) {
  const CudaInfo info = query_cuda(options.device);
  require_user(info.problem.empty() && !info.gpus.empty(),
               "dist.device=cuda: {}; dist.device=cpu (--device cpu) runs without a GPU",
               info.problem.empty() ? "there is no GPU" : info.problem);
  require_user(options.device >= 0 && options.device < static_cast<int>(info.gpus.size()),
               "there is no GPU {}; this machine has {}", options.device, info.gpus.size());
  const GpuInfo& gpu = info.gpus[static_cast<std::size_t>(options.device)];
  require_user(gpu.problem.empty(), "{}: {}; this program was built with CUDA {}, the driver serves {}", gpu.name,
               gpu.problem, info.toolkit, info.driver);
  return {.name = fmt::format("cuda, {}", gpu.name),
          .peak_flops = peak_flops_of(gpu.name),
          .device = std::make_unique<CudaDevice>(options.device),
          .ops = std::make_unique<CudaOps>(options)};
}

}  // namespace tera::cuda
