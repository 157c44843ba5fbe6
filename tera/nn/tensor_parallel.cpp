#include "tera/nn/tensor_parallel.h"

namespace tera {

Tensor TensorParallel::own_rows(const Tensor& all) const {
  if (!all || !cuts_rows()) return all;
  const std::int64_t rows = all.dim(0) / size();
  return all.rows(rank() * rows, (rank() + 1) * rows);
}

Tensor TensorParallel::gather(Run& run, const Tensor& own, Arena& arena, std::string_view tag) const {
  if (!cuts_rows()) return own;
  Shape all = own.shape;
  all[0] *= size();
  const Tensor whole = arena.take(all, own.dtype, tag);
  run.ops.wait(group->all_gather(own, whole, run.ops.record()));
  return whole;
}

Tensor TensorParallel::room_for_partial(Run& run, const Tensor& out, std::string_view tag) const {
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
