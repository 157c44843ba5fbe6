#pragma once
// Context parallelism: each sequence is split over several ranks. A rank has T of the K = cp T rows of a microbatch,
// and computes alone what needs one row only. Attention needs all of them. Either keys and values are sent (ring
// attention or all-gather, context_attention.h), or all-to-alls trade rows for heads (Ulysses, cp_comm_type a2a):
//
//   rank 0   rows a, all heads ─┐              ┌─ rows a b, heads 0 ── attention ─┐              ┌─ rows a, all heads
//                               ├─ all-to-all ─┤                                  ├─ all-to-all ─┤
//   rank 1   rows b, all heads ─┘              └─ rows a b, heads 1 ── attention ─┘              └─ rows b, all heads
//
// All K rows are in the order of the microbatch. With one rank, local and all rows are the same memory and every call
// below does nothing.

#include <span>
#include <vector>

#include "tera/comm/comm.h"
#include "tera/config/sections/dist.h"
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
  // Ulysses: ranks over which heads are split in attention, where each has all rows. Otherwise 1.
  int head_ranks() const { return comm == CpCommType::a2a ? size() : 1; }
  int head_rank() const { return comm == CpCommType::a2a ? rank() : 0; }

  // Ids of the rows that attention sees here.
  const Tensor& row_ids(const Run& run) const { return head_ranks() > 1 ? run.mb.all.rows : run.mb.rows; }

  // Ulysses. local: tensors [T,N,D], all heads of this rank's rows; all [K,sum of N/cp D]: all rows of this rank's
  // heads, N/cp of the first tensor, then of the second, ... Rows of local may be strided.
  void all_to_all_to_heads(Run& run, std::span<const Tensor> local, const Tensor& all) const;
  void all_to_all_to_rows(Run& run, const Tensor& all, std::span<const Tensor> local) const;  // the inverse

  // All-gather: local [T,c] of every rank into all [K,c]. Reduce-scatter: the sum over ranks of all into local. Dense.
  void gather(Run& run, const Tensor& local, const Tensor& all) const;
  void reduce(Run& run, const Tensor& all, const Tensor& local) const;
};

}  // namespace tera
