#include "tera/ops/gemm.h"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/kernels/plain_gemm.cuh"
#include "tera/backend/cuda/libraries/cublaslt.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/backend/cuda/workspace.h"

namespace tera::cuda {
namespace {

kernels::PlainGemm plain(const GemmArgs& args) {
  const std::int64_t a = args.a.stride[0], b = args.b.stride[0];
  return {.a = args.a.data,
          .b = args.b.data,
          .bias = args.bias.data,
          .residual = args.residual.data,
          .out = args.out.data,
          .m = args.m(),
          .n = args.n(),
          .k = args.k(),
          .a_row = args.trans_a ? 1 : a,
          .a_column = args.trans_a ? a : 1,
          .b_row = args.trans_b ? 1 : b,
          .b_column = args.trans_b ? b : 1,
          .out_stride = args.out.stride[0],
          .residual_stride = args.residual ? args.residual.stride[0] : 0,
          .accumulate = args.accumulate,
          .in_type = scalar_of(args.a.dtype),
          .out_type = scalar_of(args.out.dtype),
          .bias_type = args.bias ? scalar_of(args.bias.dtype) : kernels::Scalar::f32,
          .residual_type = args.residual ? scalar_of(args.residual.dtype) : kernels::Scalar::f32};
}

}  // namespace

template <>
void CudaOps::compute(const GemmArgs& args) {
  if (args.m() == 0 || args.n() == 0) return;
  const bool fast = !options_.only_plain_gemm && cublaslt_supports(args);
  const bool done = fast && cublaslt_->run(args, workspace(gemm_workspace_bytes), stream_);
  if (!done) check(kernels::launch_plain_gemm(plain(args), stream_), "gemm");
}

}  // namespace tera::cuda
