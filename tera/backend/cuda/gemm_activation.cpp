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

// Whether there is enough of a product for the tiles of 256 x 256 that two multiprocessors make at a time: of fewer
// than four rounds by all 132 the last is too often an empty one, and the library has kernels with other tiles. An
// estimate, and the same for every Hopper, so that bits do not depend on its size.
bool fills_a_gpu(const GemmArgs& product) {
  constexpr std::int64_t tile = 256, fewest_tiles = 4 * 64;
  const auto tiles = [](std::int64_t size) { return (size + tile - 1) / tile; };
  return tiles(product.m()) * tiles(product.n()) >= fewest_tiles;
}

}  // namespace

bool CudaOps::may_fuse(const GemmArgs& product) const {
  if (options_.plain_products || options_.hopper_kernels == HopperKernels::never) return false;
  return options_.hopper_kernels == HopperKernels::wherever_they_fit || fills_a_gpu(product);
}
bool CudaOps::fuses(const GemmActivationArgs& args) const {
  return may_fuse(args.product) && args.product.trans_b && is_gated_product(args) &&
         kernels::hopper_gated_gemm_takes(gated(args));
}
bool CudaOps::fuses(const GemmActivationBackArgs& args) const {
  return may_fuse(args.product) && !args.product.trans_b && is_gated_product(args) &&
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
