#include "tera/nn/context_parallel.h"

#include "tera/base/function_ref.h"

namespace tera {
namespace {

// Shares of heads as they travel, those of one rank together: see(share of own, its place in `packed`), for all.
void each_share(std::span<const Tensor> own, const Tensor& packed, std::int64_t ranks,
                FunctionRef<void(const Tensor& share, const Tensor& place)> see) {
  const std::int64_t rows = packed.dim(0) / ranks;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::int64_t column = 0;
    for (const Tensor& heads : own) {
      const std::int64_t each = heads.dim(1) / ranks, size = heads.dim(2);
      const Tensor place = packed.rows(rank * rows, (rank + 1) * rows).slice(1, column, column + each * size);
      see(heads.slice(1, rank * each, (rank + 1) * each), place.split_last(each, size));
      column += each * size;
    }
  }
}

}  // namespace

void ContextParallel::spread_heads(Run& run, std::span<const Tensor> own, const Tensor& all) const {
  if (head_ranks() == 1) return;
  ScratchScope scope(run.scratch);
  const Tensor leaving = run.scratch.take(all.shape, all.dtype, "context.leaving");
  const Tensor came = run.scratch.take(all.shape, all.dtype, "context.came");
  each_share(own, leaving, size(),
             [&](const Tensor& share, const Tensor& place) { run.ops.copy({.src = share, .dst = place}); });
  run.ops.wait(group->all_to_all(leaving, came, rows_each, rows_each, run.ops.record()));
  run.ops.permute({.x = came, .sources = run.mb.all.places, .y = all});
}

void ContextParallel::collect_heads(Run& run, const Tensor& all, std::span<const Tensor> own) const {
  if (head_ranks() == 1) return;
  ScratchScope scope(run.scratch);
  const Tensor leaving = run.scratch.take(all.shape, all.dtype, "context.leaving");
  const Tensor came = run.scratch.take(all.shape, all.dtype, "context.came");
  run.ops.permute({.x = all, .sources = run.mb.all.at_places, .y = leaving});
  run.ops.wait(group->all_to_all(leaving, came, rows_each, rows_each, run.ops.record()));
  each_share(own, came, size(),
             [&](const Tensor& share, const Tensor& place) { run.ops.copy({.src = place, .dst = share}); });
}

void ContextParallel::gather(Run& run, const Tensor& own, const Tensor& all) const {
  if (size() == 1) return;
  ScratchScope scope(run.scratch);
  const Tensor came = run.scratch.take(all.shape, all.dtype, "context.came");
  run.ops.wait(group->all_gather(own, came, run.ops.record()));
  run.ops.permute({.x = came, .sources = run.mb.all.places, .y = all});
}

void ContextParallel::reduce(Run& run, const Tensor& all, const Tensor& own) const {
  if (size() == 1) return;
  ScratchScope scope(run.scratch);
  const Tensor leaving = run.scratch.take(all.shape, all.dtype, "context.leaving");
  run.ops.permute({.x = all, .sources = run.mb.all.at_places, .y = leaving});
  run.ops.wait(group->reduce_scatter(leaving, own, Reduce::sum, run.ops.record()));
}

}  // namespace tera
