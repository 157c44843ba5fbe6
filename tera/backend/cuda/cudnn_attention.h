#pragma once
// Attention by cuDNN, through cudnn-frontend. Its header is very slow to compile: only cudnn_attention.cpp includes it.
// Built without it, no_cudnn_attention.cpp stands in and takes no shape.

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "tera/backend/cuda/make_cuda.h"
#include "tera/ops/ops.h"

namespace tera::cuda {

class CudnnAttention {
 public:
  CudnnAttention(const CudaOptions& options, cudaStream_t stream);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // Whether cuDNN takes the call; if not, our own kernels do. The first call of a shape builds its graph, unless
  // prepare() has; later ones look the answer up and allocate nothing.
  bool takes(const AttentionArgs& args);
  bool takes(const AttentionBackArgs& args);

  // Builds the graphs of these calls and checks that the reserved workspace is enough for them.
  void prepare(const PlannedCalls& calls, std::size_t workspace);

  // Of calls that it takes.
  void forward(const AttentionArgs& args, std::span<std::byte> workspace);
  void backward(const AttentionBackArgs& args, std::span<std::byte> workspace);

  // What cuDNN itself asks for, to be compared with CudnnLayout::library; 0 where it does not take the call.
  std::size_t library_bytes(const AttentionArgs& args);
  std::size_t library_bytes(const AttentionBackArgs& args);

  // Why calls that suit cuDNN went to our own kernels: a line for each shape; empty when none did.
  std::string reason() const;
  // All that a user should know: reason(), calls of prepare() that do not suit it, or that there is no cuDNN. Empty
  // when exact attention was asked for.
  std::string remarks() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "9.19.0", or empty when it is not there.
std::string cudnn_version();

}  // namespace tera::cuda
