// GEMM (matmul) and grouped GEMM: the output is split into chunks that fit the workspace, b of a chunk is packed by all
// threads together, then tasks of a fixed number of rows multiply it. Task borders depend on the shape only.

#include <algorithm>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/kernels/gemm.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/base/error.h"
#include "tera/ops/copy.h"
#include "tera/ops/gemm.h"
#include "tera/ops/gemm_activation.h"
#include "tera/ops/grouped_gemm.h"
#include "tera/tensor/arena.h"

namespace tera::cpu {
namespace {

using Index = std::int64_t;

constexpr Index chunk_rows = 2048, chunk_columns = 1024, chunk_depth_blocks = 6;
// Enough tasks to balance about ten threads; fewer where a has to be packed, since every task along a row of tasks
// packs it again.
constexpr Index wanted_tasks = 32, wanted_packing_tasks = 16;

constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }
constexpr Index round_up(Index a, Index b) { return ceil_div(a, b) * b; }

// The size of a part when `total` is split into as few parts as `max_size` allows, all about equal, in multiples of
// `step`.
constexpr Index even_part(Index total, Index max_size, Index step) {
  return total == 0 ? step : round_up(ceil_div(total, ceil_div(total, max_size)), step);
}

struct Range {
  Index begin = 0, size = 0;
};
constexpr Range part(Index index, Index size, Index total) {
  const Index begin = index * size;
  return {begin, std::min(size, total - begin)};
}

// The blocking of a GEMM. A chunk uses one packed part of b; a block is the part of a chunk that one task computes.
struct GemmBlocking {
  Index m, n, k;
  Index rows, columns, depth;  // size of a chunk
  Index block_rows, block_columns, block_depth;
  bool separate_sums;  // 16-bit output over several blocks of depth: fp32 sums in the workspace

  explicit GemmBlocking(const GemmArgs& args) : m(args.m()), n(args.n()), k(args.k()) {
    rows = even_part(m, chunk_rows, gemm_block_rows);
    columns = even_part(n, chunk_columns, gemm_column_step);
    block_depth = even_part(k, gemm_block_depth, 8);
    depth = even_part(k, chunk_depth_blocks * gemm_block_depth, block_depth);
    block_rows = gemm_block_rows;
    const Index row_tasks = ceil_div(std::min(rows, m), block_rows);
    const Index wanted = args.trans_a || args.a.dtype != DType::f32 ? wanted_packing_tasks : wanted_tasks;
    block_columns = even_part(columns, std::max(gemm_column_step, columns * row_tasks / wanted), gemm_column_step);
    separate_sums = args.out.dtype != DType::f32 && k > block_depth;
  }

  // An upper bound of `depth` for every k up to this one.
  static constexpr Index max_depth(Index k) {
    return std::min(k, chunk_depth_blocks * gemm_block_depth) + gemm_block_depth;
  }

  std::size_t packed_bytes() const { return sizeof(float) * static_cast<std::size_t>(columns * depth); }
  std::size_t sums_bytes() const {
    return separate_sums ? sizeof(float) * static_cast<std::size_t>(rows * columns) : 0;
  }
};

constexpr std::size_t scratch_bytes = align_up(sizeof(float) * gemm_scratch_floats, 4096);

GemmStorage storage_of(DType dtype) {
  return dtype == DType::f32 ? GemmStorage::f32 : dtype == DType::bf16 ? GemmStorage::bf16 : GemmStorage::f16;
}

// The submatrix of a tensor that begins at (row, column). A bias has one row.
GemmMatrix matrix(const Tensor& tensor, Index row, Index column) {
  if (!tensor) return {};
  const Index stride = tensor.shape.rank == 2 ? tensor.stride[0] : 0;
  const Index bytes = (row * stride + column) * static_cast<Index>(size_of(tensor.dtype));
  return {static_cast<const std::byte*>(tensor.data) + bytes, stride, storage_of(tensor.dtype)};
}

class TiledGemm {
 public:
  TiledGemm(const GemmArgs& args, const GemmKernels& kernels, std::span<std::byte> workspace)
      : args_(args), blocking_(args), kernels_(kernels) {
    packed_ = reinterpret_cast<float*>(workspace.data());
    sums_ = reinterpret_cast<float*>(workspace.data() + blocking_.packed_bytes());
    scratch_ = workspace.data() + blocking_.packed_bytes() + blocking_.sums_bytes();
  }

  void run(ThreadPool& pool) {
    for (row_ = 0; row_ < blocking_.m; row_ += blocking_.rows)
      for (column_ = 0; column_ < blocking_.n; column_ += blocking_.columns) {
        depth_ = 0;
        do run_chunk(pool);
        while ((depth_ += blocking_.depth) < blocking_.k);
      }
  }

 private:
  void run_chunk(ThreadPool& pool) {
    const Index columns = std::min(blocking_.columns, blocking_.n - column_),
                rows = std::min(blocking_.rows, blocking_.m - row_);
    const Index depth = std::min(blocking_.depth, blocking_.k - depth_);
    const Index groups = ceil_div(columns, gemm_column_step);
    pool.parallel_for(groups * ceil_div(depth, blocking_.block_depth), [&](Index task, int) {
      pack(part(task % groups, gemm_column_step, columns), part(task / groups, blocking_.block_depth, depth));
    });
    const Index column_tasks = ceil_div(columns, blocking_.block_columns);
    pool.parallel_for(column_tasks * ceil_div(rows, blocking_.block_rows), [&](Index task, int worker) {
      multiply(part(task / column_tasks, blocking_.block_rows, rows),
               part(task % column_tasks, blocking_.block_columns, columns), depth, worker);
    });
  }

  // Packed b: blocks of depth one after the other, each [slivers, depth of the block, tile columns].
  float* packed(Index column, Range depth) const {
    return packed_ + depth.begin * blocking_.columns + column * depth.size;
  }

  void pack(Range columns, Range depth) const {
    const Index k = depth_ + depth.begin, n = column_ + columns.begin;
    kernels_.pack({.b = args_.trans_b ? matrix(args_.b, n, k) : matrix(args_.b, k, n),
                   .transposed = args_.trans_b,
                   .depth = depth.size,
                   .columns = columns.size,
                   .packed = packed(columns.begin, depth)});
  }

  void multiply(Range rows, Range columns, Index chunk_depth, int worker) const {
    const Index m = row_ + rows.begin, n = column_ + columns.begin;
    GemmBlockArgs block;
    block.transposed = args_.trans_a;
    block.rows = rows.size;
    block.columns = columns.size;
    block.scratch = reinterpret_cast<float*>(scratch_ + static_cast<std::size_t>(worker) * scratch_bytes);
    if (blocking_.separate_sums) {
      block.sums = sums_ + rows.begin * blocking_.columns + columns.begin;
      block.sums_stride = blocking_.columns;
    } else if (args_.out.dtype == DType::f32) {
      block.sums = args_.out.as<float>() + m * args_.out.stride[0] + n;
      block.sums_stride = args_.out.stride[0];
    }
    Index at = 0;
    do {
      const Range depth = {at, std::min(blocking_.block_depth, chunk_depth - at)};
      const Index k = depth_ + at;
      const bool first = k == 0, last = k + depth.size == blocking_.k;
      block.a = args_.trans_a ? matrix(args_.a, k, m) : matrix(args_.a, m, k);
      block.b = packed(columns.begin, depth);
      block.depth = depth.size;
      block.add = !first || (args_.accumulate && args_.out.dtype == DType::f32);
      block.bias = first ? matrix(args_.bias, 0, n) : GemmMatrix{};
      block.residual = first ? residual(m, n) : GemmMatrix{};
      block.out = last && args_.out.dtype != DType::f32 ? matrix(args_.out, m, n) : GemmMatrix{};
      kernels_.block(block);
      at += depth.size;
    } while (at < chunk_depth);
  }

  // Accumulating into a 16-bit output is a GEMM with that output as its residual.
  GemmMatrix residual(Index m, Index n) const {
    const bool add_out = args_.accumulate && args_.out.dtype != DType::f32;
    return matrix(add_out ? args_.out : args_.residual, m, n);
  }

  const GemmArgs& args_;
  const GemmBlocking blocking_;
  const GemmKernels& kernels_;
  float* packed_;                           // [depth, columns] of a chunk
  float* sums_;                             // [rows, columns] of a chunk
  std::byte* scratch_;                      // [threads, scratch_bytes]
  Index row_ = 0, column_ = 0, depth_ = 0;  // where the chunk begins
};

// Few rows, as in decoding: such a GEMM is bound by reading b, which is therefore not packed.
bool is_thin(const GemmArgs& args) {
  return args.m() <= gemm_thin_rows && !args.trans_a && args.trans_b && args.m() * args.n() > 0;
}

void thin_gemm(const GemmArgs& args, const GemmKernels& kernels, ThreadPool& pool) {
  pool.parallel_for(ceil_div(args.n(), gemm_column_step), [&](Index task, int) {
    const Range columns = part(task, gemm_column_step, args.n());
    kernels.thin({.a = matrix(args.a, 0, 0),
                  .b = matrix(args.b, columns.begin, 0),
                  .rows = args.m(),
                  .columns = columns.size,
                  .depth = args.k(),
                  .bias = matrix(args.bias, 0, columns.begin),
                  .residual = matrix(args.accumulate ? args.out : args.residual, 0, columns.begin),
                  .out = matrix(args.out, 0, columns.begin)});
  });
}

}  // namespace

std::size_t CpuWorkspaceRules::workspace(const GemmArgs& args) const {
  if (is_thin(args)) return 0;
  const GemmBlocking blocking(args);
  return blocking.packed_bytes() + blocking.sums_bytes() + static_cast<std::size_t>(threads_) * scratch_bytes;
}

template <>
void CpuOps::compute(const GemmArgs& args) {
  const auto& kernels = pick(isa_, []<Isa isa>() -> const GemmKernels& { return gemm_kernels<isa>(); });
  if (is_thin(args)) return thin_gemm(args, kernels, pool_);
  TiledGemm(args, kernels, workspace(CpuWorkspaceRules(pool_.size()).workspace(args))).run(pool_);
}

// Grouped GEMM, one group after the other: the tasks of one group, even of few rows, keep all threads busy.

namespace {

Tensor matrix_of(const Tensor& tensor, Index g) {
  return tensor.rows(g, g + 1).view(shape(tensor.dim(1), tensor.dim(2)));
}

GemmArgs group_gemm(const GroupedGemmArgs& args, Index g, Index begin, Index end) {
  return {.a = args.a.rows(begin, end),
          .b = matrix_of(args.b, g),
          .out = args.out.rows(begin, end),
          .trans_b = args.trans_b};
}

GemmArgs group_gemm(const GroupedWeightGradientArgs& args, Index g, Index begin, Index end) {
  return {.a = args.a.rows(begin, end),
          .b = args.b.rows(begin, end),
          .out = matrix_of(args.out, g),
          .trans_a = true,
          .accumulate = args.accumulate};
}

// Calls run(arguments of its GEMM) for every group that is not empty.
template <class Args, class Run>
void for_each_group(const Args& args, const char* op, const Run& run) {
  const auto* offsets = args.offsets.template as<std::int32_t>();
  const Index groups = args.groups(), rows = args.a.dim(0);
  bool ascending = offsets[0] >= 0 && offsets[groups] <= rows;
  for (Index g = 0; g < groups; ++g) ascending = ascending && offsets[g] <= offsets[g + 1];
  require(ascending, "{}: offsets do not ascend within {} rows", op, rows);
  for (Index g = 0; g < groups; ++g)
    if (offsets[g] < offsets[g + 1]) run(group_gemm(args, g, offsets[g], offsets[g + 1]));
}

}  // namespace

// The workspace is largest where one group has all rows.
std::size_t CpuWorkspaceRules::workspace(const GroupedGemmArgs& args) const {
  return workspace(group_gemm(args, 0, 0, std::min(args.a.dim(0), chunk_rows)));
}

std::size_t CpuWorkspaceRules::workspace(const GroupedWeightGradientArgs& args) const {
  const Index rows = args.a.dim(0);
  const GemmBlocking blocking(group_gemm(args, 0, 0, rows));
  return sizeof(float) * static_cast<std::size_t>(blocking.columns * GemmBlocking::max_depth(rows)) +
         static_cast<std::size_t>(threads_) * scratch_bytes;
}

template <>
void CpuOps::compute(const GemmActivationArgs& /*args*/) {
  fail("gemm_activation: the CPU fuses nothing");
}
template <>
void CpuOps::compute(const GemmActivationBackArgs& /*args*/) {
  fail("gemm_activation_back: the CPU fuses nothing");
}

template <>
void CpuOps::compute(const GroupedGemmArgs& args) {
  for_each_group(args, "grouped_gemm", [this](const GemmArgs& group) { execute(group); });
}

template <>
void CpuOps::compute(const GroupedWeightGradientArgs& args) {
  for_each_group(args, "grouped_weight_gradient", [this](const GemmArgs& group) { execute(group); });
  const auto* offsets = args.offsets.as<std::int32_t>();
  for (Index g = 0; !args.accumulate && g < args.groups(); ++g)
    if (offsets[g] == offsets[g + 1]) execute(FillArgs{.out = matrix_of(args.out, g), .value = 0});
}

}  // namespace tera::cpu
