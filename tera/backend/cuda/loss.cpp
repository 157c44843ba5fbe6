#include "tera/backend/cuda/kernels/loss.cuh"

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/ops/loss.h"

namespace tera::cuda {
namespace {

kernels::MergedCrossEntropy merged(const CrossEntropyArgs& args) {
  return {.scalar = scalar_of(args.logits.dtype),
          .loss_only = args.loss_only,
          .logits = args.logits.data,
          .targets = args.targets.as<std::int32_t>(),
          .token_loss = args.token_loss.as<float>(),
          .scale = args.loss_only ? nullptr : args.scale.as<float>(),
          .stats = args.stats.as<float>(),
          .parts = args.stats.dim(0),
          .rows = args.logits.dim(0),
          .columns = args.logits.dim(1),
          .used = args.used_columns(),
          .first = args.first,
          .vocab = args.vocab};
}

}  // namespace

template <>
void CudaOps::compute(const CrossEntropyArgs& args) {
  if (args.stats) return check(kernels::launch_merged_cross_entropy(merged(args), stream_), "cross_entropy");
  const kernels::CrossEntropy loss{.scalar = scalar_of(args.logits.dtype),
                                   .wanted = args.loss_only ? kernels::Wanted::loss : kernels::Wanted::gradient,
                                   .logits = args.logits.data,
                                   .targets = args.targets.as<std::int32_t>(),
                                   .result = args.token_loss.as<float>(),
                                   .scale = args.loss_only ? nullptr : args.scale.as<float>(),
                                   .rows = args.logits.dim(0),
                                   .columns = args.logits.dim(1),
                                   .vocab = args.vocab,
                                   .first = 0,
                                   .all_parts_vocab = args.vocab,
                                   .kept_pairs = 0};
  check(kernels::launch_cross_entropy(loss, stream_), "cross_entropy");
}

template <>
void CudaOps::compute(const CrossEntropyStatsArgs& args) {
  const kernels::CrossEntropy stats{.scalar = scalar_of(args.logits.dtype),
                                    .wanted = kernels::Wanted::stats,
                                    .logits = args.logits.data,
                                    .targets = args.targets.as<std::int32_t>(),
                                    .result = args.stats.as<float>(),
                                    .scale = nullptr,
                                    .rows = args.logits.dim(0),
                                    .columns = args.logits.dim(1),
                                    .vocab = args.used_columns(),
                                    .first = args.first,
                                    .all_parts_vocab = args.vocab,
                                    .kept_pairs = 0};
  check(kernels::launch_cross_entropy(stats, stream_), "cross_entropy_stats");
}

}  // namespace tera::cuda
