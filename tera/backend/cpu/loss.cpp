#include "tera/backend/cpu/kernels/loss.h"

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/base/error.h"

namespace tera::cpu {

void CpuOps::do_cross_entropy(const CrossEntropyArgs& args) {
  const auto* targets = args.targets.as<std::int32_t>();
  for (std::int64_t t = 0; t < args.targets.dim(0); ++t)
    require(targets[t] < args.vocab, "cross_entropy: target {} of row {} is outside a vocabulary of {}", targets[t], t,
            args.vocab);
  const CrossEntropyRows rows{.logits = args.logits.data,
                              .targets = targets,
                              .token_loss = args.token_loss.as<float>(),
                              .vocab = args.vocab,
                              .stride = args.logits.dim(1),
                              .scale = args.loss_only ? 0.0f : *args.scale.as<float>()};
  const auto& kernels = pick(isa_, []<Isa i>() -> const LossKernels& { return loss_kernels<i>(); });
  const auto kernel = kernels.cross_entropy[args.loss_only ? 1 : 0][static_cast<int>(args.logits.dtype)];
  run_blocks(pool_, row_blocks(args.logits.dim(0), rows.stride),
             [&](std::int64_t begin, std::int64_t end) { kernel(rows, begin, end); });
}

}  // namespace tera::cpu
