#pragma once
// Attention by cuDNN, through cudnn-frontend. Its header is very slow to compile: only cudnn_attention.cpp includes it.
// Built without it, no_cudnn_attention.cpp stands in and supports no shape.

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/ops/ops.h"

namespace tera::cuda {

class CudnnAttention {
 public:
  CudnnAttention(const CudaOptions& options, cudaStream_t stream);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // Whether cuDNN computes the call; if not, our own kernels do. The first call of a shape builds its graph, unless
  // prepare() has; later ones look the answer up and allocate nothing.
  bool supports(const AttentionArgs& args);
  bool supports(const AttentionBackArgs& args);

  // Builds the graphs of these calls and checks that the reserved workspace is enough for them.
  void prepare(const PlannedCalls& calls, std::size_t workspace);

  // Compute calls that supports() accepts.
  void forward(const AttentionArgs& args, std::span<std::byte> workspace);
  void backward(const AttentionBackArgs& args, std::span<std::byte> workspace);

  // cuDNN's own workspace, to be compared with CudnnLayout::library; 0 where it does not support the call.
  std::size_t library_bytes(const AttentionArgs& args);
  std::size_t library_bytes(const AttentionBackArgs& args);

  // Why cuDNN refused calls that cudnn_supports() accepts: a line for each shape; empty when there are none.
  std::string reason() const;
  // Remarks for the user: reason(), calls of prepare() that cuDNN does not support, or that there is no cuDNN. Empty
  // when exact attention was requested.
  std::string remarks() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "9.19.0", or empty when it is not there.
std::string cudnn_version();

}  // namespace tera::cuda
