#pragma once
// The token dispatcher of expert parallelism: dispatch sends rows to the ranks of their experts, combine returns and
// sums what the experts made of them. A leaf of Moe: no parameters, calls with explicit tensors.
//
//   local rows [t,H] --start_rows--------> in flight --finish_rows----> [R,H], rows of one expert together
//   local sums [t,H] <--finish_combine---- in flight <--start_combine-- [R,H] <---- grouped GEMMs
//
// Computation between start and finish overlaps the transfer. Ranks of etp and ep take part, which together have every
// expert once. Each of them has t rows of its own, or all have the same rows already and only sums are sent. The
// capacity R is the worst case, or a multiple of an even load.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tera/config/sections/moe.h"
#include "tera/nn/expert_parallel.h"
#include "tera/nn/ffn/router.h"

namespace tera {

struct DispatchSpec {
  std::string name;  // name of the block, for messages
  std::int64_t experts = 0, topk = 1;
  double rank_capacity = 0;  // capacity of a rank, times an even load; 0: the worst case
  // Capacity factor with token dropping: above 0, every expert has exactly so many rows, times an even load; rows
  // beyond are dropped, those of the smallest weights or the last tokens. Sizes are fixed, and the host reads nothing.
  double expert_capacity = 0;
  TokenDropPolicy drop = TokenDropPolicy::probs;
};

// A transfer between ranks; both tensors are in scratch until it has arrived.
struct InFlightTransfer {
  Tensor from, to;
  Ticket arrival;
};

// What begin() and finish_dispatch() keep for the other calls, until W. A tokens arrived here, with K choices each.
struct Dispatched {
  Tensor weights;                                       // f32 [A,K]; until B
  Tensor offsets;                                       // i32 [G+1]: where rows of this rank's experts begin
  Tensor sources;                                       // i32 [R]: the choice of each row
  Tensor places;                                        // i32 [A,K]: the row of each choice; until B
  std::int64_t expected_rows = 0;                       // rows of R that experts have when their load is even
  std::int64_t rows() const { return sources.dim(0); }  // R
  InFlightTransfer forward_rows;                        // transfer of F, between start_dispatch() and finish_dispatch()

  // Members of the all-to-all dispatcher.
  Tensor send_sources, return_rows;  // i32 [t K], [t,K]: local choices in order of their experts, and the inverse
  Tensor send_rows;                  // [t K,H] of F, in scratch
  Tensor choices;                    // i32 [R,1] of F, in scratch: the expert of each received row
  Ticket counts_read;                // when the host knows how many rows each rank sends
  Ticket weights_arrival, experts_arrival;   // between start_dispatch() and finish_dispatch()
  std::vector<std::int64_t> send_counts;     // rows to each rank of ep
  std::vector<std::int64_t> receive_counts;  // rows from each rank of ep
  std::vector<std::int64_t> regions;         // where the rows received by each rank of etp begin; then the end
};

class Dispatch {
 public:
  Dispatch(const DispatchSpec& spec, const ExpertParallel& parallel);
  virtual ~Dispatch() = default;

  virtual Dispatched make() const { return {}; }  // has the host memory that is allocated once

  // Dispatch of F in three calls, between which other work may be enqueued: begin() computes where local rows [t,H] go,
  // start_dispatch() sends them, and finish_dispatch() returns [R,H] in scratch: the rows of every rank, each once per
  // choice of an expert of this rank. Scratch of the first two calls is needed until the third.
  virtual void begin(Run& run, Dispatched& d, const Routes& routes, const Tensor& local) const = 0;
  virtual void start_dispatch(Run& run, Dispatched& d, const Routes& routes, const Tensor& local) const = 0;
  virtual Tensor finish_dispatch(Run& run, Dispatched& d) const = 0;

  // Dispatch of other rows [t,H] in the same way, in B and W: to [R,H].
  virtual InFlightTransfer start_rows(Run& run, const Dispatched& d, const Tensor& local) const = 0;
  virtual void finish_rows(Run& run, const Dispatched& d, const InFlightTransfer& transfer, const Tensor& to) const = 0;

  // Combine: out [t,H] = residual + for each local row, the sum of what its experts made of it, in `rows` [R,H] of
  // every rank. Where only sums are sent, start reads the residual, else finish; out must not be used in between.
  virtual bool starts_with_residual() const { return false; }
  virtual InFlightTransfer start_combine(Run& run, const Dispatched& d, const Tensor& rows, const Tensor& out,
                                         const Tensor& residual) const = 0;
  virtual void finish_combine(Run& run, const Dispatched& d, const InFlightTransfer& transfer, const Tensor& out,
                              const Tensor& residual) const = 0;

  // Combine for the gradients of routing weights: from f32 [A,K], what this rank's experts made, to f32 [t,K] of local
  // rows, in scratch or in the given tensor itself.
  virtual InFlightTransfer start_weight_gradients(Run& run, const Dispatched& d, const Tensor& arrived) const = 0;
  virtual Tensor finish_weight_gradients(Run& run, const Dispatched& d, const InFlightTransfer& transfer) const = 0;

 protected:
  // Rows of this rank's experts, where so many tokens are routed among all ranks: at most, with an even load, and the
  // capacity that is planned.
  std::int64_t worst_case(std::int64_t tokens) const;
  double even_share(std::int64_t tokens) const;
  std::int64_t row_capacity(const Run& run, std::int64_t tokens) const;
  // Groups rows by the experts of this rank, with results in the stash, of so many rows.
  void group(Run& run, Dispatched& d, std::int64_t rows, GroupRowsArgs args) const;

  DispatchSpec spec_;
  ExpertParallel parallel_;
  ExpertParallel::Range local_experts_;
};

std::unique_ptr<Dispatch> make_dispatch(TokenDispatcher kind, const DispatchSpec& spec, const ExpertParallel& parallel);
std::unique_ptr<Dispatch> make_gather_dispatch(const DispatchSpec& spec, const ExpertParallel& parallel);
std::unique_ptr<Dispatch> make_all_to_all_dispatch(const DispatchSpec& spec, const ExpertParallel& parallel);

// The capacity of a rank in rows, where an even load of all experts is `even` rows.
std::int64_t local_expert_capacity(double rank_capacity, double even, std::int64_t worst_case);
// Ends the run: rows of a layer exceeded the capacity. The message begins with the rank (report_of in comm/world.h).
struct OverflowedRows {
  double rank_capacity = 0;
  std::int64_t rank = 0;        // rank of the world
  std::string_view block = {};  // empty: not known
  std::int64_t arrived = 0, capacity = 0;
  double even = 0;  // rows with an even load
};
[[noreturn]] void fail_capacity_overflow(const OverflowedRows& rows);
// Rows of each expert with token dropping; no token has two rows of one expert.
std::int64_t padded_rows(double capacity, std::int64_t choices, std::int64_t experts, std::int64_t tokens);

}  // namespace tera
