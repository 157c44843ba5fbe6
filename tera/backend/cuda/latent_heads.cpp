#include "tera/backend/cuda/kernels/latent_heads.cuh"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/ops/latent_heads.h"

namespace tera::cuda {
namespace {

kernels::LatentHeads heads_of(const Tensor& kv, const Tensor& rotary, const Tensor& k, const Tensor& v) {
  const std::int64_t nope = k.dim(2) - rotary.dim(1);
  return {.scalar = scalar_of(k.dtype),
          .kv = kv.data,
          .rotary = rotary.data,
          .k = k.data,
          .v = v.data,
          .rows = k.dim(0),
          .rotary_stride = rotary.stride[0],
          .heads = static_cast<int>(k.dim(1)),
          .head = static_cast<int>(k.dim(2)),
          .nope = static_cast<int>(nope),
          .values = static_cast<int>(kv.dim(2) - nope)};
}

}  // namespace

template <>
void CudaOps::compute(const LatentHeadsArgs& args) {
  check(kernels::launch_latent_heads(heads_of(args.kv, args.rotary, args.k, args.v), stream_), "latent_heads");
}

template <>
void CudaOps::compute(const LatentHeadsBackArgs& args) {
  check(kernels::launch_latent_heads_back(heads_of(args.dkv, args.drotary, args.dk, args.dv), stream_),
        "latent_heads_back");
}

}  // namespace tera::cuda
