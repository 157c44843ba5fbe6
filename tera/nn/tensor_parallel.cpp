#include "tera/nn/tensor_parallel.h"

#include "tera/ops/combine.h"

namespace tera {

Tensor TensorParallel::local_rows(const Tensor& all) const {
  if (!all || !cuts_rows()) return all;
  const std::int64_t rows = all.dim(0) / size();
  return all.rows(rank() * rows, (rank() + 1) * rows);
}

Tensor TensorParallel::gather(Run& run, const Tensor& local, Arena& arena, std::string_view tag) const {
  if (!cuts_rows()) return local;
  Shape all = local.shape;
  all[0] *= size();
  const Tensor gathered = arena.take(all, local.dtype, tag);
  run.ops.wait(group->all_gather(local, gathered, run.ops.record()));
  return gathered;
}

Tensor TensorParallel::partial_buffer(Run& run, const Tensor& out, std::string_view tag) const {
  if (!cuts_rows()) return out;
  Shape all = out.shape;
  all[0] *= size();
  return run.scratch.take(all, out.dtype, tag);
}

Ticket TensorParallel::reduce(Run& run, const Tensor& partial, const Tensor& out) const {
  if (size() == 1) return {};
  if (cuts_rows()) return group->reduce_scatter(partial, out, Reduce::sum, run.ops.record());
  return group->all_reduce(out, Reduce::sum, run.ops.record());
}

Part TensorParallel::piece(Part part, int split) const {
  const std::int64_t length = part.global[split];
  part.split = split;
  part.begin = length * rank() / size();
  part.end = length * (rank() + 1) / size();
  return part;
}

Part TensorParallel::replicated(Part part) const {
  part.replicas = size();
  part.replica = rank();
  return part;
}

}  // namespace tera
