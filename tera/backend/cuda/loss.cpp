#include "tera/backend/cuda/kernels/loss.cuh"

#include "tera/backend/cuda/cuda_error.h"
#include "tera/backend/cuda/cuda_ops.h"

namespace tera::cuda {

void CudaOps::do_cross_entropy(const CrossEntropyArgs& args) {
  const kernels::CrossEntropy loss{.scalar = scalar_of(args.logits.dtype),
                                   .loss_only = args.loss_only,
                                   .logits = args.logits.data,
                                   .targets = args.targets.as<std::int32_t>(),
                                   .token_loss = args.token_loss.as<float>(),
                                   .scale = args.loss_only ? nullptr : args.scale.as<float>(),
                                   .rows = args.logits.dim(0),
                                   .columns = args.logits.dim(1),
                                   .vocab = args.vocab,
                                   .kept_pairs = 0};
  check(kernels::launch_cross_entropy(loss, stream_), "cross_entropy");
}

}  // namespace tera::cuda
