#include "tera/backend/cuda/kernels/random.cuh"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/ops/random.h"

namespace tera::cuda {

template <>
void CudaOps::compute(const NormalArgs& args) {
  const std::int64_t elements = count(args.out.shape);
  if (elements == 0) return;
  const std::int64_t width = args.row_stride == 0 ? elements : args.out.shape.last();  // length of runs without a gap
  check(kernels::launch_normal({.out = args.out.data,
                                .rows = elements / width,
                                .columns = width,
                                .first = args.first,
                                .row_stride = args.row_stride,
                                .seed = args.key.seed,
                                .std = args.std,
                                .type = scalar_of(args.out.dtype)},
                               stream_),
        "normal");
}

}  // namespace tera::cuda
