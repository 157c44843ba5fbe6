// Dispatch of grouped GEMMs over the rows of experts: the Hopper kernel where it supports the call, else the plain one,
// which supports every call.

#include "tera/ops/grouped_gemm.h"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/kernels/experts/plain_grouped_gemm.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_grouped_gemm.cuh"
#include "tera/backend/cuda/runtime/cuda_error.h"

namespace tera::cuda {

template <>
void CudaOps::compute(const GroupedGemmArgs& args) {
  using kernels::GroupedForm;
  const kernels::HopperGroupedGemm fast{.form = args.trans_b ? GroupedForm::transposed : GroupedForm::plain,
                                        .a = args.a.data,
                                        .b = args.b.data,
                                        .out = args.out.data,
                                        .offsets = args.offsets.as<std::int32_t>(),
                                        .rows = args.a.dim(0),
                                        .groups = args.groups(),
                                        .n = args.n(),
                                        .k = args.k(),
                                        .in_type = scalar_of(args.a.dtype),
                                        .out_type = scalar_of(args.out.dtype)};
  if (!options_.only_plain_gemm && kernels::hopper_grouped_gemm_supports(fast))
    return check(kernels::launch_hopper_grouped_gemm(fast, stream_), "grouped_gemm on Hopper");
  const kernels::PlainGroupedGemm plain{.a = args.a.data,
                                        .b = args.b.data,
                                        .out = args.out.data,
                                        .offsets = args.offsets.as<std::int32_t>(),
                                        .rows = args.a.dim(0),
                                        .n = args.n(),
                                        .k = args.k(),
                                        .groups = args.groups(),
                                        .trans_b = args.trans_b,
                                        .in_type = scalar_of(args.a.dtype),
                                        .out_type = scalar_of(args.out.dtype)};
  check(kernels::launch_plain_grouped_gemm(plain, stream_), "grouped_gemm");
}

template <>
void CudaOps::compute(const GroupedWeightGradientArgs& args) {
  const kernels::HopperGroupedGemm fast{.form = kernels::GroupedForm::weights,
                                        .a = args.a.data,
                                        .b = args.b.data,
                                        .out = args.out.data,
                                        .offsets = args.offsets.as<std::int32_t>(),
                                        .rows = args.a.dim(0),
                                        .groups = args.groups(),
                                        .n = args.n(),
                                        .m = args.m(),
                                        .accumulate = args.accumulate,
                                        .in_type = scalar_of(args.a.dtype),
                                        .out_type = kernels::Scalar::f32};
  if (!options_.only_plain_gemm && kernels::hopper_grouped_gemm_supports(fast))
    return check(kernels::launch_hopper_grouped_gemm(fast, stream_), "grouped_weight_gradient on Hopper");
  const kernels::PlainGroupedWeightGradient plain{.a = args.a.data,
                                                  .b = args.b.data,
                                                  .out = args.out.as<float>(),
                                                  .offsets = args.offsets.as<std::int32_t>(),
                                                  .m = args.m(),
                                                  .n = args.n(),
                                                  .groups = args.groups(),
                                                  .accumulate = args.accumulate,
                                                  .in_type = scalar_of(args.a.dtype)};
  check(kernels::launch_plain_grouped_weight_gradient(plain, stream_), "grouped_weight_gradient");
}

}  // namespace tera::cuda
