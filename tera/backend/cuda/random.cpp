#include "tera/backend/cuda/kernels/random.cuh"
#include "tera/backend/cuda/cuda_error.h"
#include "tera/backend/cuda/cuda_ops.h"

namespace tera::cuda {

void CudaOps::do_normal(const NormalArgs& args) {
  check(kernels::launch_normal({.out = args.out.data,
                                .elements = count(args.out.shape),
                                .seed = args.key.seed,
                                .std = args.std,
                                .type = scalar_of(args.out.dtype)},
                               stream_),
        "normal");
}

}  // namespace tera::cuda
