#pragma once
// Tensor and sequence parallelism: how weights are sharded over ranks, and the collectives around the sharded GEMMs.
//
//   outside the sharded GEMMs       inside them
//   [T,H] on every rank             all T rows, some of the features; the way out is an all-reduce
//   [T/tp,H] with `sequence`        all T rows, some of the features; all-gather on the way in, reduce-scatter out
//
// With one rank every call below does nothing, and gathered and local rows are the same memory.

#include "tera/comm/comm.h"
#include "tera/nn/part.h"
#include "tera/nn/run.h"

namespace tera {

struct TensorParallel {
  Comm* group = nullptr;  // none: one rank
  bool sequence = false;  // sequence parallelism: rows outside the sharded GEMMs are split over ranks

  int size() const { return group ? group->size() : 1; }
  int rank() const { return group ? group->rank() : 0; }
  bool cuts_rows() const { return sequence && size() > 1; }
  std::int64_t outside_rows(std::int64_t tokens) const { return cuts_rows() ? tokens / size() : tokens; }

  // This rank's rows of a tensor that the microbatch has for all rows, such as row ids.
  Tensor local_rows(const Tensor& all) const;
  // All rows of a tensor from outside: with sequence parallelism gathered into memory from `arena`, else the tensor.
  Tensor gather(Run& run, const Tensor& local, Arena& arena, std::string_view tag) const;
  // Memory for partial sums of all rows whose reduction is `out`: scratch with sequence parallelism, else out itself.
  Tensor partial_buffer(Run& run, const Tensor& out, std::string_view tag) const;
  // Reduces partial sums over ranks into out. The sum is there, and `partial` free, after the ticket.
  Ticket reduce(Run& run, const Tensor& partial, const Tensor& out) const;

  // The part as this rank holds it: one of size() equal slices of dim `split`.
  Part piece(Part part, int split) const;
  // The part where every rank holds all of it.
  Part replicated(Part part) const;
};

}  // namespace tera
