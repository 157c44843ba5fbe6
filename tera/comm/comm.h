#pragma once
// A communicator: collectives and point-to-point exchanges of one group of ranks, seen from one of them. All ranks of a
// group make the same calls in the same order (exchange and split say what they allow instead). A call takes the ticket
// that it waits for and returns one to wait on, so the overlap with computation is explicit:
//
//   Ticket sent = comm.all_reduce(grad, Reduce::sum, ops.record());   // after all work that ops was given so far
//   ...                                                               // other work
//   ops.wait(sent);                                                   // from here on ops may use grad
//
// Until that ticket, the tensors of a call are in flight and must not be touched; their memory outlives the Comm, so
// that a rank may throw while others still read it. A Comm works through an Ops of its rank. Ranks that are threads do
// all but exchanges on that queue, where the order of calls would be enough; ranks that are processes transfer bytes
// while the rank computes, so a caller that does not wait for a ticket has a race.
//
// Reductions add in the order of ranks, 16-bit floats in fp32 with one rounding at the end (Ops::combine). So results
// are bitwise equal on every rank, in every run, and for every implementation but NCCL's, which adds in another order.
//
// A wait that reaches its timeout throws CommError, which names the group, the call, and the ranks that did not come.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tera/base/error.h"
#include "tera/ops/ops.h"
#include "tera/ops/reduce.h"

namespace tera {

// A call that cannot be completed: ranks did not come, came with another call, or another rank failed.
class CommError : public Error {
 public:
  using Error::Error;
};
// Another rank failed, and this one has no fault of its own to report.
class CommAborted : public CommError {
 public:
  using CommError::CommError;
};

// One send or receive of an exchange.
struct Transfer {
  Tensor tensor;
  int peer = 0;
  bool send = false;  // false: a receive
};

class Comm {
 public:
  virtual ~Comm() = default;

  virtual int rank() const = 0;  // in this group
  virtual int size() const = 0;
  virtual std::string_view name() const = 0;  // "tp"

  // Tensors are dense. Rows are dim 0: full has size() times the rows of shard, of which rank r's are the r-th block.
  // shard may be that slice of full.
  Ticket all_reduce(const Tensor& inout, Reduce how, Ticket after = {});
  Ticket all_gather(const Tensor& shard, const Tensor& full, Ticket after = {});
  Ticket reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after = {});
  // in_rows[r] rows go to rank r and out_rows[r] come from it, each in the order of ranks (all-to-all-v). The caller
  // knows both counts; those of a pair must match.
  Ticket all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                    std::span<const std::int64_t> out_rows, Ticket after = {});
  Ticket broadcast(const Tensor& inout, int root, Ticket after = {});

  // Point-to-point sends and receives, none of which waits for another, so that no order of them deadlocks. Between two
  // ranks they match in the order in which they were posted. Only the ranks concerned call it, and it may return before
  // the peers have called. (With NCCL the exchanges of a group run one after the other: the transfers of one call do
  // not wait for each other, but for those of earlier calls.)
  Ticket exchange(std::span<const Transfer> transfers, Ticket after = {});

  virtual void barrier() = 0;  // returns when all ranks have called it; says nothing about queues

  // For set-up, as MPI_Comm_split: every rank gets the group of all ranks with its color, ordered by key, then by rank
  // in this group. The name is for messages.
  virtual std::unique_ptr<Comm> split(int color, int key, std::string name) = 0;

  // This rank has failed: the waits of all others, in any group, throw a CommAborted with the reason.
  virtual void abort(std::string_view reason) noexcept = 0;

 private:
  virtual Ticket do_all_reduce(const Tensor& inout, Reduce how, Ticket after) = 0;
  virtual Ticket do_all_gather(const Tensor& shard, const Tensor& full, Ticket after) = 0;
  virtual Ticket do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after) = 0;
  virtual Ticket do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                               std::span<const std::int64_t> out_rows, Ticket after) = 0;
  virtual Ticket do_broadcast(const Tensor& inout, int root, Ticket after) = 0;
  virtual Ticket do_exchange(std::span<const Transfer> transfers, Ticket after) = 0;
};

// A world of one.
std::unique_ptr<Comm> make_self_comm(Ops& ops, std::string name = "world");

}  // namespace tera
