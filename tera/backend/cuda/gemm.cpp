#include "tera/backend/cuda/cublaslt.h"
#include "tera/backend/cuda/cuda_error.h"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/kernels/bias.cuh"
#include "tera/backend/cuda/workspace.h"

namespace tera::cuda {

// cuBLASLt adds a bias and a residual of the output's own type. Others are rare (fp32 logits of a bf16 model): a
// residual is converted into the output first, a bias added afterwards.
void CudaOps::do_gemm(const GemmArgs& args) {
  GemmArgs product = args;
  if (args.residual && args.residual.dtype != args.out.dtype) {
    do_copy({.src = args.residual, .dst = args.out});
    product.residual = args.out;
  }
  const bool bias_apart = args.bias && args.bias.dtype != args.out.dtype;
  if (bias_apart) product.bias = {};
  products_->run(product, workspace(gemm_workspace_bytes), stream_);
  if (!bias_apart) return;
  check(kernels::launch_add_bias({.out = args.out.data,
                                  .bias = args.bias.data,
                                  .rows = args.m(),
                                  .columns = args.n(),
                                  .out_stride = args.out.stride[0],
                                  .out_type = scalar_of(args.out.dtype),
                                  .bias_type = scalar_of(args.bias.dtype)},
                                 stream_),
        "add_bias");
}

}  // namespace tera::cuda
