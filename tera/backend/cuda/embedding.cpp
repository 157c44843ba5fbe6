#include "tera/backend/cuda/kernels/embedding.cuh"

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/backend/cuda/workspace.h"
#include "tera/ops/embedding.h"

namespace tera::cuda {

template <>
void CudaOps::compute(const EmbeddingArgs& args) {
  const bool with_positions = static_cast<bool>(args.positions);
  const kernels::EmbeddingForward forward{.scalar = scalar_of(args.y.dtype),
                                          .tokens = args.tokens.as<std::int32_t>(),
                                          .positions = with_positions ? args.positions.as<std::int32_t>() : nullptr,
                                          .table = args.table.data,
                                          .position_table = args.position_table.data,
                                          .y = args.y.data,
                                          .rows = args.y.dim(0),
                                          .width = args.y.dim(1),
                                          .table_rows = args.table.dim(0),
                                          .position_rows = with_positions ? args.position_table.dim(0) : 0,
                                          .first = args.first,
                                          .partial = args.partial};
  check(kernels::launch_embedding(forward, stream_), "embedding");
}

template <>
void CudaOps::compute(const EmbeddingBackArgs& args) {
  const std::span<std::byte> keys = workspace(embedding_back_bytes(args.ids.dim(0)));
  const kernels::EmbeddingBackward backward{.scalar = scalar_of(args.dy.dtype),
                                            .ids = args.ids.as<std::int32_t>(),
                                            .dy = args.dy.data,
                                            .dtable = args.dtable.as<float>(),
                                            .keys = reinterpret_cast<std::uint64_t*>(keys.data()),
                                            .rows = args.dy.dim(0),
                                            .width = args.dy.dim(1),
                                            .table_rows = args.dtable.dim(0),
                                            .first = args.first};
  check(kernels::launch_embedding_back(backward, stream_), "embedding_back");
}

}  // namespace tera::cuda
