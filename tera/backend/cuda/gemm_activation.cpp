// Products with an activation behind or before them that one kernel computes: SwiGLU on a Hopper.

#include "tera/backend/cuda/cuda_error.h"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/kernels/hopper_gated_gemm.cuh"

namespace tera::cuda {
namespace {

// A plain product of dense operands of one type, and SwiGLU without weights of rows.
template <class Args>
bool is_gated_product(const Args& args) {
  const GemmArgs& product = args.product;
  const bool plain = !product.trans_a && !product.bias && !product.residual && !product.accumulate;
  const bool dense = product.a.dense() && product.b.dense() && product.out.dense();
  const bool one_type = product.out.dtype == product.a.dtype && product.a.dtype != DType::f32;
  return plain && dense && one_type && args.activation.kind == Activation::swiglu && !args.activation.weights;
}

kernels::HopperGatedGemm gated(const GemmActivationArgs& args) {
  return {.a = args.product.a.data,
          .b = args.product.b.data,
          .x = args.activation.x.data,
          .act = args.activation.y.data,
          .rows = args.product.m(),
          .width = args.activation.y.dim(1),
          .k = args.product.k(),
          .type = scalar_of(args.product.a.dtype)};
}

kernels::HopperGatedGemmBack gated(const GemmActivationBackArgs& args) {
  return {.a = args.product.a.data,
          .b = args.product.b.data,
          .x = args.activation.x.data,
          .dx = args.activation.dx.data,
          .rows = args.product.m(),
          .width = args.product.n(),
          .k = args.product.k(),
          .type = scalar_of(args.product.a.dtype)};
}

// From how many tiles of 256 x 256 on, which two multiprocessors make at a time, one kernel is faster than the
// library's and the activation behind it: of fewer the last round of all 132 is too often an empty one, and the library
// has kernels with other tiles. Measured by bench/hopper_bounds on an H200; the same for every Hopper, so that bits do
// not depend on its size.
constexpr std::int64_t fewest_tiles_forward = 512, fewest_tiles_back = 256;

std::int64_t count_tiles(const GemmArgs& product) {
  const auto tiles = [](std::int64_t size) { return (size + 255) / 256; };
  return tiles(product.m()) * tiles(product.n());
}

}  // namespace

bool CudaOps::may_fuse(const GemmArgs& product, std::int64_t fewest_tiles) const {
  if (options_.plain_products || options_.hopper_kernels == HopperKernels::never) return false;
  return options_.hopper_kernels == HopperKernels::wherever_they_fit || count_tiles(product) >= fewest_tiles;
}
bool CudaOps::fuses(const GemmActivationArgs& args) const {
  return may_fuse(args.product, fewest_tiles_forward) && args.product.trans_b && is_gated_product(args) &&
         kernels::hopper_gated_gemm_takes(gated(args));
}
bool CudaOps::fuses(const GemmActivationBackArgs& args) const {
  return may_fuse(args.product, fewest_tiles_back) && !args.product.trans_b && is_gated_product(args) &&
         kernels::hopper_gated_gemm_takes(gated(args));
}

void CudaOps::do_gemm_activation(const GemmActivationArgs& args) {
  check(kernels::launch_hopper_gated_gemm(gated(args), stream_), "gemm_activation");
}
void CudaOps::do_gemm_activation_back(const GemmActivationBackArgs& args) {
  check(kernels::launch_hopper_gated_gemm(gated(args), stream_), "gemm_activation_back");
}

// Products that cuBLASLt has to have a kernel for.
std::vector<GemmArgs> CudaOps::products_of_their_own(const PlannedCalls& calls) const {
  std::vector<GemmArgs> products = calls.gemms;
  for (const GemmActivationArgs& call : calls.gemm_activations)
    if (!fuses(call)) products.push_back(call.product);
  for (const GemmActivationBackArgs& call : calls.gemm_activation_backs)
    if (!fuses(call)) products.push_back(call.product);
  return products;
}

}  // namespace tera::cuda
