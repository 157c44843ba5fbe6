#include "tera/backend/cpu/kernels/pointwise.h"

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/expert_rows.h"
#include "tera/ops/pointwise.h"

namespace tera::cpu {
namespace {

const PointwiseKernels& kernels(Isa isa) {
  return pick(isa, []<Isa i>() -> const PointwiseKernels& { return pointwise_kernels<i>(); });
}

const std::int32_t* checked_sources(const Tensor& sources, const Tensor& weights, std::string_view op) {
  return sources ? checked_rows(sources, count(weights.shape), op) : nullptr;
}

}  // namespace

template <>
void CpuOps::compute(const ActivationArgs& args) {
  const ActivationForward forward{.x = args.x.data,
                                  .y = args.y.data,
                                  .width = args.y.dim(1),
                                  .weights = args.weights ? args.weights.as<float>() : nullptr,
                                  .sources = checked_sources(args.sources, args.weights, "activation")};
  const auto kernel = kernels(isa_).activation[static_cast<int>(args.kind)][static_cast<int>(args.x.dtype)];
  run_blocks(pool_, row_blocks(args.y.dim(0), forward.width),
             [&](std::int64_t begin, std::int64_t end) { kernel(forward, begin, end); });
}

template <>
void CpuOps::compute(const ActivationBackArgs& args) {
  const ActivationBackward backward{.dy = args.dy.data,
                                    .x = args.x.data,
                                    .dx = args.dx.data,
                                    .width = args.dy.dim(1),
                                    .weights = args.weights ? args.weights.as<float>() : nullptr,
                                    .sources = checked_sources(args.sources, args.weights, "activation_back"),
                                    .dweights = args.dweights ? args.dweights.as<float>() : nullptr};
  const auto kernel = kernels(isa_).activation_back[static_cast<int>(args.kind)][static_cast<int>(args.x.dtype)];
  run_blocks(pool_, row_blocks(args.dy.dim(0), backward.width),
             [&](std::int64_t begin, std::int64_t end) { kernel(backward, begin, end); });
}

template <>
void CpuOps::compute(const DropoutArgs& args) {
  const DropoutForward forward{.x = args.x.data,
                               .residual = args.residual.data,
                               .y = args.y.data,
                               .rows = args.rows.as<std::int64_t>(),
                               .key = args.key.seed,
                               .rate = args.rate,
                               .width = args.x.dim(1)};
  const auto kernel = kernels(isa_).dropout[static_cast<int>(args.x.dtype)];
  run_blocks(pool_, row_blocks(args.x.dim(0), forward.width),
             [&](std::int64_t begin, std::int64_t end) { kernel(forward, begin, end); });
}

}  // namespace tera::cpu
