#include "tera/backend/cpu/kernels/embedding.h"

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/base/error.h"
#include "tera/ops/embedding.h"

namespace tera::cpu {
namespace {

const EmbeddingKernels& kernels(Isa isa) {
  return pick(isa, []<Isa i>() -> const EmbeddingKernels& { return embedding_kernels<i>(); });
}

// Ids come from data: a table that is not partial must hold all of them.
const std::int32_t* checked_ids(const Tensor& ids, std::int64_t first, std::int64_t table_rows, std::string_view op) {
  const auto* id = ids.as<std::int32_t>();
  for (std::int64_t t = 0; t < ids.dim(0); ++t)
    require(id[t] >= first && id[t] - first < table_rows, "{}: id {} of row {} is outside a table of ids {} to {}", op,
            id[t], t, first, first + table_rows - 1);
  return id;
}

}  // namespace

template <>
void CpuOps::compute(const EmbeddingArgs& args) {
  const bool with_positions = static_cast<bool>(args.positions);
  const EmbeddingForward forward{
      .tokens = args.partial ? args.tokens.as<std::int32_t>()
                             : checked_ids(args.tokens, args.first, args.table.dim(0), "embedding"),
      .positions = with_positions ? checked_ids(args.positions, 0, args.position_table.dim(0), "embedding") : nullptr,
      .table = args.table.data,
      .position_table = args.position_table.data,
      .y = args.y.data,
      .first = args.first,
      .table_rows = args.table.dim(0),
      .width = args.y.dim(1)};
  const auto kernel = kernels(isa_).forward[static_cast<int>(args.y.dtype)];
  run_blocks(pool_, row_blocks(args.y.dim(0), forward.width),
             [&](std::int64_t begin, std::int64_t end) { kernel(forward, begin, end); });
}

template <>
void CpuOps::compute(const EmbeddingBackArgs& args) {
  const EmbeddingBackward backward{.ids = args.partial
                                              ? args.ids.as<std::int32_t>()
                                              : checked_ids(args.ids, args.first, args.dtable.dim(0), "embedding_back"),
                                   .dy = args.dy.data,
                                   .dtable = args.dtable.as<float>(),
                                   .first = args.first,
                                   .table_rows = args.dtable.dim(0),
                                   .rows = args.dy.dim(0),
                                   .width = args.dy.dim(1)};
  const auto kernel = kernels(isa_).backward[static_cast<int>(args.dy.dtype)];
  run_blocks(pool_, {.items = backward.width, .size = 64},
             [&](std::int64_t begin, std::int64_t end) { kernel(backward, begin, end); });
}

}  // namespace tera::cpu
