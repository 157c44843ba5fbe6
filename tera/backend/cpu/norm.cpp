#include "tera/backend/cpu/kernels/norm.h"

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/reduce.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/ops/norm.h"

namespace tera::cpu {
namespace {

const NormKernels& kernels(Isa isa) {
  return pick(isa, []<Isa i>() -> const NormKernels& { return norm_kernels<i>(); });
}

NormShape norm_shape(const Tensor& x) { return {.heads = x.shape.rank == 3 ? x.dim(1) : 1, .width = x.shape.last()}; }
std::int64_t vectors_of(const Tensor& x) { return x.dim(0) * norm_shape(x).heads; }

// Partial sums: [blocks, width] for dweight, then [blocks, width] for dbias.
std::int64_t partial_width(const NormBackArgs& args) {
  return ((args.dweight ? 1 : 0) + (args.dbias ? 1 : 0)) * args.x.shape.last();
}
std::size_t partial_bytes(const NormBackArgs& args) {
  return static_cast<std::size_t>(sum_blocks(vectors_of(args.x)).count() * partial_width(args)) * sizeof(float);
}

}  // namespace

template <>
void CpuOps::compute(const NormArgs& args) {
  const NormForward forward{.shape = norm_shape(args.x),
                            .x = args.x.data,
                            .weight = args.weight.data,
                            .bias = args.bias.data,
                            .y = args.y.data,
                            .mean = args.mean ? args.mean.as<float>() : nullptr,
                            .rstd = args.rstd.as<float>(),
                            .x_stride = args.x.stride[0],
                            .y_stride = args.y.stride[0],
                            .eps = args.eps};
  const auto kernel = kernels(isa_).forward[static_cast<int>(args.kind)][static_cast<int>(args.x.dtype)];
  run_blocks(pool_, row_blocks(vectors_of(args.x), forward.shape.width),
             [&](std::int64_t begin, std::int64_t end) { kernel(forward, begin, end); });
}

std::size_t CpuWorkspaceRules::workspace(const NormBackArgs& args) const { return partial_bytes(args); }

template <>
void CpuOps::compute(const NormBackArgs& args) {
  const NormBackward backward{.shape = norm_shape(args.x),
                              .dy = args.dy.data,
                              .x = args.x.data,
                              .weight = args.weight.data,
                              .residual = args.residual.data,
                              .dx = args.dx.data,
                              .mean = args.mean ? args.mean.as<float>() : nullptr,
                              .rstd = args.rstd.as<float>(),
                              .dy_stride = args.dy.stride[0],
                              .x_stride = args.x.stride[0],
                              .residual_stride = args.residual.stride[0],
                              .dx_stride = args.dx.stride[0]};
  const std::int64_t width = backward.shape.width;
  const Blocks blocks = sum_blocks(vectors_of(args.x));
  const std::int64_t sums = blocks.count() * width;  // elements of one gradient: [blocks, width]
  auto* partial = reinterpret_cast<float*>(workspace(partial_bytes(args)).data());
  float* dweight = args.dweight ? partial : nullptr;
  float* dbias = args.dbias ? partial + (dweight ? sums : 0) : nullptr;
  const auto kernel = kernels(isa_).backward[static_cast<int>(args.kind)][static_cast<int>(args.x.dtype)];
  pool_.parallel_for(blocks.count(), [&](std::int64_t block, int) {
    kernel(backward, blocks.begin(block), blocks.end(block), dweight ? dweight + block * width : nullptr,
           dbias ? dbias + block * width : nullptr);
  });
  if (dweight) add_partial_sums(pool_, isa_, dweight, blocks.count(), width, args.dweight.as<float>());
  if (dbias) add_partial_sums(pool_, isa_, dbias, blocks.count(), width, args.dbias.as<float>());
}

}  // namespace tera::cpu
