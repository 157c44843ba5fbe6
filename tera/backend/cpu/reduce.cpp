#include "tera/backend/cpu/reduce.h"

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/kernels/reduce.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/ops/gemm.h"
#include "tera/ops/loss.h"
#include "tera/ops/optim.h"

namespace tera::cpu {
namespace {

const ReduceKernels& kernels(Isa isa) {
  return pick(isa, []<Isa i>() -> const ReduceKernels& { return reduce_kernels<i>(); });
}

std::size_t block_sums_bytes(const Tensor& x) {
  return static_cast<std::size_t>(element_blocks(count(x.shape)).count()) * sizeof(double);
}

// One fp64 sum per block, then the sum of the blocks in order.
double sum_of_blocks(ThreadPool& pool, double (*kernel)(const float*, std::int64_t), const Tensor& x, double* partial) {
  const Blocks blocks = element_blocks(count(x.shape));
  const auto* values = x.as<float>();
  pool.parallel_for(blocks.count(), [&](std::int64_t block, int) {
    partial[block] = kernel(values + blocks.begin(block), blocks.end(block) - blocks.begin(block));
  });
  double total = 0;
  for (std::int64_t block = 0; block < blocks.count(); ++block) total += partial[block];
  return total;
}

}  // namespace

void add_partial_sums(ThreadPool& pool, Isa isa, const float* partial, std::int64_t rows, std::int64_t width,
                      float* out) {
  run_blocks(pool, {.items = width, .size = 256}, [&](std::int64_t begin, std::int64_t end) {
    kernels(isa).add_rows(partial + begin, width, rows, end - begin, out + begin);
  });
}

std::size_t CpuWorkspaceRules::workspace(const ColumnSumArgs& args) const {
  return static_cast<std::size_t>(sum_blocks(args.x.dim(0)).count() * args.x.dim(1)) * sizeof(float);
}

template <>
void CpuOps::compute(const ColumnSumArgs& args) {
  const Blocks blocks = sum_blocks(args.x.dim(0));
  const std::int64_t width = args.x.dim(1), stride = args.x.stride[0];
  const auto bytes = static_cast<std::size_t>(blocks.count() * width) * sizeof(float);
  auto* partial = reinterpret_cast<float*>(workspace(bytes).data());
  const auto* x = static_cast<const std::byte*>(args.x.data);
  const auto row_bytes = stride * static_cast<std::int64_t>(size_of(args.x.dtype));
  const auto sum_rows = kernels(isa_).sum_rows[static_cast<int>(args.x.dtype)];
  pool_.parallel_for(blocks.count(), [&](std::int64_t block, int) {
    const std::int64_t begin = blocks.begin(block), rows = blocks.end(block) - begin;
    sum_rows(x + begin * row_bytes, stride, rows, width, partial + block * width);
  });
  add_partial_sums(pool_, isa_, partial, blocks.count(), width, args.out.as<float>());
}

std::size_t CpuWorkspaceRules::workspace(const SumArgs& args) const { return block_sums_bytes(args.x); }
std::size_t CpuWorkspaceRules::workspace(const SumSquaresArgs& args) const { return block_sums_bytes(args.x); }

template <>
void CpuOps::compute(const SumArgs& args) {
  auto* partial = reinterpret_cast<double*>(workspace(block_sums_bytes(args.x)).data());
  auto& out = *args.out.as<double>();
  out = (args.accumulate ? out : 0.0) + sum_of_blocks(pool_, kernels(isa_).sum, args.x, partial);
}

template <>
void CpuOps::compute(const SumSquaresArgs& args) {
  auto* partial = reinterpret_cast<double*>(workspace(block_sums_bytes(args.x)).data());
  *args.out.as<double>() = sum_of_blocks(pool_, kernels(isa_).sum_squares, args.x, partial);
}

}  // namespace tera::cpu
