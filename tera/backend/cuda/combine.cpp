#include "tera/backend/cuda/kernels/combine.cuh"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/ops/combine.h"

namespace tera::cuda {
namespace {

kernels::Element element_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return kernels::Element::f32;
    case DType::bf16: return kernels::Element::bf16;
    case DType::f16: return kernels::Element::f16;
    case DType::f64: return kernels::Element::f64;
    case DType::i32: return kernels::Element::i32;
    case DType::i64: return kernels::Element::i64;
    case DType::u8: break;
  }
  fail("combine: {} has no sum", name_of(dtype));
}

kernels::Combine combine_of(Reduce how) {
  switch (how) {
    case Reduce::sum: return kernels::Combine::sum;
    case Reduce::mean: return kernels::Combine::mean;
    case Reduce::max: break;
  }
  return kernels::Combine::max;
}

}  // namespace

template <>
void CudaOps::compute(const CombineArgs& args) {
  static_assert(CombineArgs::max_sources == kernels::CombineLaunch::max_sources);
  kernels::CombineLaunch launch{.sources = {},
                                .number = static_cast<int>(args.sources.size()),
                                .out = args.out.data,
                                .n = count(args.out.shape),
                                .element = element_of(args.out.dtype),
                                .how = combine_of(args.how)};
  for (std::size_t s = 0; s < args.sources.size(); ++s) launch.sources[s] = args.sources[s].data;
  check(kernels::launch_combine(launch, stream_), "combine");
}

}  // namespace tera::cuda
