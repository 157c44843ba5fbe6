#pragma once
// One group of ranks, seen from one of them. All ranks of a group make the same calls in the same order (exchange and
// split say what they allow instead). A call takes what it waits for and returns what to wait on, so overlap is written
// down, not left to luck:
//
//   Ticket sent = comm.all_reduce(grad, Reduce::sum, ops.record());   // after everything that was asked of ops so far
//   ...                                                               // other work
//   ops.wait(sent);                                                   // from here on ops may use grad
//
// Until that ticket, the tensors of a call belong to it; their memory outlives the Comm, so that a rank may throw while
// others still read it. A Comm works through an Ops of its rank. Threads do all but exchanges on that queue, where the
// order of calls would be enough; processes move bytes while the rank computes, so whoever leaves out the wait for a
// ticket is right by luck.
//
// Sums are made in the order of ranks, 16-bit floats in fp32 with one rounding at the end (Ops::combine). So results
// are the same bits on every rank, in every run, and for every implementation but NCCL's, which adds in another order.
//
// Who waits too long throws CommError, which names the group, the call, and the ranks that did not come.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tera/base/error.h"
#include "tera/ops/ops.h"

namespace tera {

// A call that cannot be completed: ranks did not come, came with another call, or another rank failed.
class CommError : public Error {
 public:
  using Error::Error;
};
// Another rank failed, and this one has no fault of its own to tell.
class CommAborted : public CommError {
 public:
  using CommError::CommError;
};

// One part of an exchange.
struct Transfer {
  Tensor tensor;
  int peer = 0;
  bool send = false;  // or receive
};

class Comm {
 public:
  virtual ~Comm() = default;

  virtual int rank() const = 0;  // in this group
  virtual int size() const = 0;
  virtual std::string_view name() const = 0;  // "tp"

  // Tensors are dense. Rows are dim 0: whole has size() times the rows of shard, rank r's being the r-th part.
  Ticket all_reduce(const Tensor& inout, Reduce how, Ticket after = {});
  Ticket all_gather(const Tensor& shard, const Tensor& whole, Ticket after = {});  // shard may be its part of whole
  Ticket reduce_scatter(const Tensor& whole, const Tensor& shard, Reduce how, Ticket after = {});  // here as well
  // in_rows[r] rows go to rank r and out_rows[r] come from it, each in order of ranks. The counts are the caller's to
  // know; those of a pair must match.
  Ticket all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                    std::span<const std::int64_t> out_rows, Ticket after = {});
  Ticket broadcast(const Tensor& inout, int root, Ticket after = {});

  // Sends and receives of which none waits for another: no order to deadlock on. Between two ranks they match in the
  // order in which they were asked for. Only the ranks concerned call it, and it may return before they have. (With
  // NCCL the exchanges of a group happen one after the other: those of one call do not wait for each other, but for
  // those before.)
  Ticket exchange(std::span<const Transfer> transfers, Ticket after = {});

  virtual void barrier() = 0;  // returns when all ranks have called it; says nothing about queues

  // For set-up: every rank gets the group of those with its color, ordered by key, then by rank here. The name is for
  // messages.
  virtual std::unique_ptr<Comm> split(int color, int key, std::string name) = 0;

  // This rank has failed: all others, in any group, get a CommAborted with the reason instead of waiting.
  virtual void abort(std::string_view reason) noexcept = 0;

 private:
  virtual Ticket do_all_reduce(const Tensor& inout, Reduce how, Ticket after) = 0;
  virtual Ticket do_all_gather(const Tensor& shard, const Tensor& whole, Ticket after) = 0;
  virtual Ticket do_reduce_scatter(const Tensor& whole, const Tensor& shard, Reduce how, Ticket after) = 0;
  virtual Ticket do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                               std::span<const std::int64_t> out_rows, Ticket after) = 0;
  virtual Ticket do_broadcast(const Tensor& inout, int root, Ticket after) = 0;
  virtual Ticket do_exchange(std::span<const Transfer> transfers, Ticket after) = 0;
};

// A world of one.
std::unique_ptr<Comm> make_self_comm(Ops& ops, std::string name = "world");

}  // namespace tera
