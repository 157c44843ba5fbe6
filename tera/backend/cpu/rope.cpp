#include <algorithm>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/kernels/rope.h"
#include "tera/base/error.h"
#include "tera/ops/rope.h"

namespace tera::cpu {
namespace {

constexpr std::int64_t rows_per_task = 32;

std::size_t storage_index(DType dtype) {
  return static_cast<std::size_t>(dtype == DType::bf16  ? RopeStorage::bf16
                                  : dtype == DType::f16 ? RopeStorage::f16
                                                        : RopeStorage::f32);
}

void check_positions(const RopeArgs& args) {
  const auto* positions = args.positions.as<std::int32_t>();
  const std::int64_t limit = args.cos.dim(0);
  for (std::int64_t i = 0; i < args.positions.dim(0); ++i)
    require(positions[i] >= 0 && positions[i] < limit, "rope: row {} is at position {}, the tables hold {}", i,
            positions[i], limit);
}

}  // namespace

template <>
void CpuOps::compute(const RopeArgs& args) {
  check_positions(args);
  const auto rotate = pick(isa_, []<Isa isa>() -> const RopeKernels& {
                        return rope_kernels<isa>();
                      }).rotate[storage_index(args.x.dtype)];
  const std::int64_t rows = args.x.dim(0);
  const std::size_t row_bytes = static_cast<std::size_t>(args.x.stride[0]) * size_of(args.x.dtype);
  const std::size_t skipped = static_cast<std::size_t>(args.first) * size_of(args.x.dtype);
  pool_.parallel_for((rows + rows_per_task - 1) / rows_per_task, [&](std::int64_t task, int) {
    const std::int64_t first = task * rows_per_task;
    rotate({.x = static_cast<std::byte*>(args.x.data) + skipped + static_cast<std::size_t>(first) * row_bytes,
            .stride = args.x.stride[0],
            .positions = args.positions.as<std::int32_t>() + first,
            .cos = args.cos.as<float>(),
            .sin = args.sin.as<float>(),
            .rows = std::min(rows_per_task, rows - first),
            .heads = args.x.dim(1),
            .head_size = args.x.dim(2),
            .pairs = args.cos.dim(1),
            .interleaved = args.interleaved,
            .inverse = args.inverse});
  });
}

}  // namespace tera::cpu
