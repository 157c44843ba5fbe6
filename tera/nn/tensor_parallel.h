#pragma once
// How the leaves of a model are cut over tensor-parallel ranks, and how rows travel between them.
//
//   outside the split products      inside them
//   [T,H] on every rank             all T rows, some of the features
//   [T/tp,H] with `sequence`        the same: rows are gathered on the way in, and summed and scattered on the way out
//
// With one rank every call below is nothing, and gathered and local rows are the same memory.

#include "tera/comm/comm.h"
#include "tera/nn/part.h"
#include "tera/nn/run.h"

namespace tera {

struct TensorParallel {
  Comm* group = nullptr;  // none: one rank
  bool sequence = false;  // sequence parallelism: rows outside the split products are cut

  int size() const { return group ? group->size() : 1; }
  int rank() const { return group ? group->rank() : 0; }
  bool cuts_rows() const { return sequence && size() > 1; }
  std::int64_t outside_rows(std::int64_t tokens) const { return cuts_rows() ? tokens / size() : tokens; }

  // This rank's rows of what a microbatch brings for all of them, such as row ids.
  Tensor own_rows(const Tensor& all) const;
  // All rows of a tensor from outside; itself where rows are not cut, else gathered into memory from `arena`.
  Tensor gather(Run& run, const Tensor& own, Arena& arena, std::string_view tag) const;
  // Where partial sums of all rows are made that end as `out` outside: out itself, or scratch.
  Tensor room_for_partial(Run& run, const Tensor& out, std::string_view tag) const;
  // Adds up what the ranks have in it, into out. The sum is there, and `partial` free, after the ticket.
  Ticket reduce(Run& run, const Tensor& partial, const Tensor& out) const;

  // The part as this rank holds it: of the dim one piece of size() equal ones.
  Part piece(Part part, int split) const;
  // The part as every rank holds it.
  Part replicated(Part part) const;
};

}  // namespace tera
