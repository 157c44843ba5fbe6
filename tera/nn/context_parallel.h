#pragma once
// Each sequence over several ranks: a rank has T of the K = cp T rows of a microbatch, and does alone whatever looks at
// one row. Attention looks at all of them. Either keys and values travel (context_attention.h), or heads do (a2a):
//
//   rank 0   rows a, all heads ─┐                ┌─ rows a b, heads 0 ── attention ─┐           ┌─ rows a, all heads
//                               ├─ spread_heads ─┤                                  ├─ collect ─┤
//   rank 1   rows b, all heads ─┘                └─ rows a b, heads 1 ── attention ─┘           └─ rows b, all heads
//
// All rows are in the order of the microbatch. With one rank, own and all rows are the same memory and every call below
// is nothing.

#include <span>
#include <vector>

#include "tera/comm/comm.h"
#include "tera/config/dist.h"
#include "tera/nn/run.h"

namespace tera {

struct ContextParallel {
  ContextParallel() = default;
  ContextParallel(Comm& ranks, std::int64_t rows, CpCommType what)
      : group(&ranks), rows_each(static_cast<std::size_t>(ranks.size()), rows), comm(what) {}

  Comm* group = nullptr;                // none: one rank
  std::vector<std::int64_t> rows_each;  // [cp]: T of every rank
  CpCommType comm = CpCommType::p2p;

  // The ranks that share the rows of this microbatch.
  const ContextParallel& of(const Run& run) const { return run.mb.cp ? *run.mb.cp : *this; }

  int size() const { return group ? group->size() : 1; }
  int rank() const { return group ? group->rank() : 0; }
  // Ranks that share heads in attention, and so have all rows there.
  int head_ranks() const { return comm == CpCommType::a2a ? size() : 1; }
  int head_rank() const { return comm == CpCommType::a2a ? rank() : 0; }

  // Ids of the rows that attention sees here.
  const Tensor& row_ids(const Run& run) const { return head_ranks() > 1 ? run.mb.all.rows : run.mb.rows; }

  // own: tensors [T,N,D] of heads, of which each rank takes as many: all [K,sum of N/cp D] has those of the first
  // tensor, then of the second, ... Rows of own may be strided.
  void spread_heads(Run& run, std::span<const Tensor> own, const Tensor& all) const;
  void collect_heads(Run& run, const Tensor& all, std::span<const Tensor> own) const;  // the way back

  // own [T,c] of every rank into all [K,c]; and what the ranks have in all, added up, into own. All dense.
  void gather(Run& run, const Tensor& own, const Tensor& all) const;
  void reduce(Run& run, const Tensor& all, const Tensor& own) const;
};

}  // namespace tera
