#include "tera/nn/context_parallel.h"

#include "tera/base/function_ref.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/expert_rows.h"

namespace tera {
namespace {

// Heads as the all-to-all sends them, those of one rank together: see(heads in local, the same in `packed`), for all.
void each_shard(std::span<const Tensor> local, const Tensor& packed, std::int64_t ranks,
                FunctionRef<void(const Tensor& shard, const Tensor& slot)> see) {
  const std::int64_t rows = packed.dim(0) / ranks;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::int64_t column = 0;
    for (const Tensor& heads : local) {
      const std::int64_t each = heads.dim(1) / ranks, size = heads.dim(2);
      const Tensor slot = packed.rows(rank * rows, (rank + 1) * rows).slice(1, column, column + each * size);
      see(heads.slice(1, rank * each, (rank + 1) * each), slot.split_last(each, size));
      column += each * size;
    }
  }
}

}  // namespace

void ContextParallel::all_to_all_to_heads(Run& run, std::span<const Tensor> local, const Tensor& all) const {
  if (head_ranks() == 1) return;
  ScratchScope scope(run.scratch);
  const Tensor send = run.scratch.take(all.shape, all.dtype, "context.leaving");
  const Tensor received = run.scratch.take(all.shape, all.dtype, "context.came");
  each_shard(local, send, size(),
             [&](const Tensor& shard, const Tensor& slot) { run.ops(CopyArgs{.src = shard, .dst = slot}); });
  run.ops.wait(group->all_to_all(send, received, rows_each, rows_each, run.ops.record()));
  run.ops(PermuteArgs{.x = received, .sources = run.mb.all.cp_order, .y = all});
}

void ContextParallel::all_to_all_to_rows(Run& run, const Tensor& all, std::span<const Tensor> local) const {
  if (head_ranks() == 1) return;
  ScratchScope scope(run.scratch);
  const Tensor send = run.scratch.take(all.shape, all.dtype, "context.leaving");
  const Tensor received = run.scratch.take(all.shape, all.dtype, "context.came");
  run.ops(PermuteArgs{.x = all, .sources = run.mb.all.cp_order_rows, .y = send});
  run.ops.wait(group->all_to_all(send, received, rows_each, rows_each, run.ops.record()));
  each_shard(local, received, size(),
             [&](const Tensor& shard, const Tensor& slot) { run.ops(CopyArgs{.src = slot, .dst = shard}); });
}

void ContextParallel::gather(Run& run, const Tensor& local, const Tensor& all) const {
  if (size() == 1) return;
  ScratchScope scope(run.scratch);
  const Tensor received = run.scratch.take(all.shape, all.dtype, "context.came");
  run.ops.wait(group->all_gather(local, received, run.ops.record()));
  run.ops(PermuteArgs{.x = received, .sources = run.mb.all.cp_order, .y = all});
}

void ContextParallel::reduce(Run& run, const Tensor& all, const Tensor& local) const {
  if (size() == 1) return;
  ScratchScope scope(run.scratch);
  const Tensor send = run.scratch.take(all.shape, all.dtype, "context.leaving");
  run.ops(PermuteArgs{.x = all, .sources = run.mb.all.cp_order_rows, .y = send});
  run.ops.wait(group->reduce_scatter(send, local, Reduce::sum, run.ops.record()));
}

}  // namespace tera
