// GEMMs with a fused activation (SwiGLU on a Hopper): forward in the epilogue, backward on the gradient it computes.

#include "tera/ops/gemm_activation.h"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/kernels/hopper/hopper_gated_gemm.cuh"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/ops/gemm.h"
#include "tera/ops/planned_calls.h"

namespace tera::cuda {
namespace {

// A plain GEMM of dense operands of one type, and SwiGLU without routing weights.
template <class Args>
bool is_gated_gemm(const Args& args) {
  const GemmArgs& gemm = args.gemm;
  const bool plain = !gemm.trans_a && !gemm.bias && !gemm.residual && !gemm.accumulate;
  const bool dense = gemm.a.dense() && gemm.b.dense() && gemm.out.dense();
  const bool one_type = gemm.out.dtype == gemm.a.dtype && gemm.a.dtype != DType::f32;
  return plain && dense && one_type && args.activation.kind == Activation::swiglu && !args.activation.weights;
}

kernels::HopperGatedGemm gated(const GemmActivationArgs& args) {
  return {.a = args.gemm.a.data,
          .b = args.gemm.b.data,
          .x = args.activation.x.data,
          .act = args.activation.y.data,
          .rows = args.gemm.m(),
          .width = args.activation.y.dim(1),
          .k = args.gemm.k(),
          .type = scalar_of(args.gemm.a.dtype)};
}

kernels::HopperGatedGemmBack gated(const GemmActivationBackArgs& args) {
  return {.a = args.gemm.a.data,
          .b = args.gemm.b.data,
          .x = args.activation.x.data,
          .dx = args.activation.dx.data,
          .rows = args.gemm.m(),
          .width = args.gemm.n(),
          .k = args.gemm.k(),
          .type = scalar_of(args.gemm.a.dtype)};
}

// The number of tiles of 256 x 256, each computed by a cluster of two multiprocessors, from which on the fused kernel
// is faster than cuBLASLt's with the activation after it: with fewer tiles the last wave of all 132 is too often nearly
// empty, and the library has kernels with other tiles. Measured by bench/hopper_bounds on an H200; equal for every
// Hopper, so that bits do not depend on its size.
constexpr std::int64_t min_tiles_forward = 512, min_tiles_back = 256;

std::int64_t count_tiles(const GemmArgs& gemm) {
  const auto tiles = [](std::int64_t size) { return (size + 255) / 256; };
  return tiles(gemm.m()) * tiles(gemm.n());
}

}  // namespace

bool CudaOps::may_fuse(const GemmArgs& args, std::int64_t min_tiles) const {
  if (options_.only_plain_gemm || options_.hopper_kernels == HopperKernels::never) return false;
  return options_.hopper_kernels == HopperKernels::wherever_supported || count_tiles(args) >= min_tiles;
}
bool CudaOps::fuses(const GemmActivationArgs& args) const {
  return may_fuse(args.gemm, min_tiles_forward) && args.gemm.trans_b && is_gated_gemm(args) &&
         kernels::hopper_gated_gemm_supports(gated(args));
}
bool CudaOps::fuses(const GemmActivationBackArgs& args) const {
  return may_fuse(args.gemm, min_tiles_back) && !args.gemm.trans_b && is_gated_gemm(args) &&
         kernels::hopper_gated_gemm_supports(gated(args));
}

template <>
void CudaOps::compute(const GemmActivationArgs& args) {
  check(kernels::launch_hopper_gated_gemm(gated(args), stream_), "gemm_activation");
}
template <>
void CudaOps::compute(const GemmActivationBackArgs& args) {
  check(kernels::launch_hopper_gated_gemm(gated(args), stream_), "gemm_activation_back");
}

// GEMMs that cuBLASLt has to have a kernel for.
std::vector<GemmArgs> CudaOps::unfused_gemms(const PlannedCalls& calls) const {
  std::vector<GemmArgs> gemms = calls.gemms;
  for (const GemmActivationArgs& call : calls.gemm_activations)
    if (!fuses(call)) gemms.push_back(call.gemm);
  for (const GemmActivationBackArgs& call : calls.gemm_activation_backs)
    if (!fuses(call)) gemms.push_back(call.gemm);
  return gemms;
}

}  // namespace tera::cuda
