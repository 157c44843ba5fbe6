#include "tera/backend/cpu/kernels/loss.h"

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/base/error.h"
#include "tera/ops/loss.h"

namespace tera::cpu {
namespace {

const LossKernels& kernels(Isa isa) {
  return pick(isa, []<Isa i>() -> const LossKernels& { return loss_kernels<i>(); });
}

const std::int32_t* checked_targets(const Tensor& targets, std::int64_t vocab, std::string_view op) {
  const auto* target = targets.as<std::int32_t>();
  for (std::int64_t t = 0; t < targets.dim(0); ++t)
    require(target[t] < vocab, "{}: target {} of row {} is outside a vocabulary of {}", op, target[t], t, vocab);
  return target;
}

}  // namespace

template <>
void CpuOps::compute(const CrossEntropyArgs& args) {
  const bool merged = static_cast<bool>(args.stats);
  const CrossEntropyRows rows{.logits = args.logits.data,
                              .targets = checked_targets(args.targets, args.vocab, "cross_entropy"),
                              .token_loss = args.token_loss.as<float>(),
                              .stats = merged ? args.stats.as<float>() : nullptr,
                              .parts = merged ? args.stats.dim(0) : 0,
                              .rows = args.logits.dim(0),
                              .first = args.first,
                              .used = args.used_columns(),
                              .stride = args.logits.dim(1),
                              .scale = args.loss_only ? 0.0f : *args.scale.as<float>()};
  const auto kernel = kernels(isa_).cross_entropy[merged][args.loss_only][static_cast<int>(args.logits.dtype)];
  run_blocks(pool_, row_blocks(args.logits.dim(0), rows.stride),
             [&](std::int64_t begin, std::int64_t end) { kernel(rows, begin, end); });
}

template <>
void CpuOps::compute(const CrossEntropyStatsArgs& args) {
  const SoftmaxStatsRows rows{.logits = args.logits.data,
                              .targets = checked_targets(args.targets, args.vocab, "cross_entropy_stats"),
                              .stats = args.stats.as<float>(),
                              .first = args.first,
                              .used = args.used_columns(),
                              .stride = args.logits.dim(1)};
  const auto kernel = kernels(isa_).stats[static_cast<int>(args.logits.dtype)];
  run_blocks(pool_, row_blocks(args.logits.dim(0), rows.stride),
             [&](std::int64_t begin, std::int64_t end) { kernel(rows, begin, end); });
}

}  // namespace tera::cpu
