#pragma once
// Attention by cuDNN, through cudnn-frontend. Its header is very slow to compile: only cudnn_attention.cpp includes it.
// Built without it, no_cudnn_attention.cpp stands in and takes no shape.

#include <cuda_runtime_api.h>

#include <memory>

#include "tera/backend/cuda/make_cuda.h"
#include "tera/ops/ops.h"

namespace tera::cuda {

class CudnnAttention {
 public:
  CudnnAttention(const CudaOptions& options, cudaStream_t stream);
  ~CudnnAttention();

  // Whether cuDNN takes the call; if not, our own kernels do.
  bool takes(const AttentionArgs& args);
  bool takes(const AttentionBackArgs& args);

  // Builds the plans of these calls and checks that the reserved workspace is enough.
  void prepare(const PlannedCalls& calls, std::size_t workspace);

  void forward(const AttentionArgs& args, std::span<std::byte> workspace);
  void backward(const AttentionBackArgs& args, std::span<std::byte> workspace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "9.19.0", or empty when it is not there.
std::string cudnn_version();

}  // namespace tera::cuda
