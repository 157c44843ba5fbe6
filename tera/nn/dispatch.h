#pragma once
// How rows get to the ranks that have their experts, and what becomes of them back. A leaf of Moe: no parameters, calls
// with explicit tensors.
//
//   own rows [t,H] --start_rows--> on their way --finish_rows--> [R,H], those of each expert of this rank together
//   own sums [t,H] <--finish_sum-- on their way <--start_sum---- [R,H] <---- products
//
// Between start and finish a rank computes something else, or nothing. Rows travel over the ranks of etp and ep, which
// together have every expert once. Each of them brings t rows of its own, or all have the same rows already and nothing
// but sums travels. R is planned for all that can come, or for a multiple of an even share.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tera/config/moe.h"
#include "tera/nn/expert_parallel.h"
#include "tera/nn/router.h"

namespace tera {

struct DispatchSpec {
  std::string name;  // of the block, for messages
  std::int64_t experts = 0, topk = 1;
  double rank_capacity = 0;  // room for rows, times an even share; 0: for as many as can come
  // Above 0, every expert has exactly so many rows, times an even share: those that are too many are dropped, the
  // smallest weights or the last tokens; sizes are fixed, and nothing is read by the host.
  double expert_capacity = 0;
  TokenDropPolicy drop = TokenDropPolicy::probs;
};

// Under way between ranks, in scratch that stands until it is there.
struct Travel {
  Tensor from, to;
  Ticket there;
};

// What begin() and arrive() leave for the rest, until W. A tokens arrived here, with K choices each.
struct Dispatched {
  Tensor weights;                                       // f32 [A,K]; until B
  Tensor offsets;                                       // i32 [G+1]: of this rank's experts
  Tensor sources;                                       // i32 [R]: the choice of each row
  Tensor places;                                        // i32 [A,K]: and the row of each choice; until B
  std::int64_t usual_rows = 0;                          // of R, those that experts have when their load is even
  std::int64_t rows() const { return sources.dim(0); }  // R
  Travel of_f;                                          // rows between leave() and arrive()

  // Of the all-to-all alone.
  Tensor home_sources, home_places;     // i32 [t K], [t,K]: own choices in order of their experts
  Tensor leaving_rows;                  // [t K,H] of F, in scratch
  Tensor choices;                       // i32 [R,1] of F, in scratch: the expert of each row that came
  Ticket counts_read;                   // when the host knows how many rows travel
  Ticket weights_there, choices_there;  // between leave() and arrive()
  std::vector<std::int64_t> leaving;    // own rows to each rank of ep
  std::vector<std::int64_t> coming;     // and from each to this one
  std::vector<std::int64_t> regions;    // where rows begin that came to each rank of etp; then the end
};

class Dispatch {
 public:
  Dispatch(const DispatchSpec& spec, const ExpertParallel& parallel);
  virtual ~Dispatch() = default;

  virtual Dispatched make() const { return {}; }  // what is allocated once

  // F. Where own rows [t,H] of a microbatch go; then they leave; then they are there: [R,H] in scratch, the rows of
  // every rank, each as often as experts of this rank are to see it. Other work may be asked for between any two.
  // Scratch of the first two is needed until the third.
  virtual void begin(Run& run, Dispatched& d, const Routes& routes, const Tensor& own) const = 0;
  virtual void leave(Run& run, Dispatched& d, const Routes& routes, const Tensor& own) const = 0;
  virtual Tensor arrive(Run& run, Dispatched& d) const = 0;

  // The same of other rows, later: to [R,H].
  virtual Travel start_rows(Run& run, const Dispatched& d, const Tensor& own) const = 0;
  virtual void finish_rows(Run& run, const Dispatched& d, const Travel& travel, const Tensor& to) const = 0;

  // out [t,H] = residual + for each own row, the sum of what the experts made of it in `rows` [R,H] of every rank.
  // Where nothing but sums travels, the residual is read by start, else by finish; out belongs to the sum in between.
  virtual bool starts_with_residual() const { return false; }
  virtual Travel start_sum(Run& run, const Dispatched& d, const Tensor& rows, const Tensor& out,
                           const Tensor& residual) const = 0;
  virtual void finish_sum(Run& run, const Dispatched& d, const Travel& travel, const Tensor& out,
                          const Tensor& residual) const = 0;

  // The gradients of own weights, f32 [t,K] in scratch or the given tensor itself: f32 [A,K] as this rank has them.
  virtual Travel start_weight_gradients(Run& run, const Dispatched& d, const Tensor& arrived) const = 0;
  virtual Tensor finish_weight_gradients(Run& run, const Dispatched& d, const Travel& travel) const = 0;

 protected:
  // Rows of this rank's experts, where so many tokens are routed among all ranks: at most, with an even load, and those
  // that there is room for.
  std::int64_t worst_case(std::int64_t tokens) const;
  double even_share(std::int64_t tokens) const;
  std::int64_t room(const Run& run, std::int64_t tokens) const;
  // The group op, with the experts of this rank, and what it leaves from the stash: room for so many rows.
  void group(Run& run, Dispatched& d, std::int64_t room, GroupRowsArgs args) const;

  DispatchSpec spec_;
  ExpertParallel parallel_;
  ExpertParallel::Range held_;
};

std::unique_ptr<Dispatch> make_dispatch(TokenDispatcher kind, const DispatchSpec& spec, const ExpertParallel& parallel);
std::unique_ptr<Dispatch> make_gather_dispatch(const DispatchSpec& spec, const ExpertParallel& parallel);
std::unique_ptr<Dispatch> make_all_to_all_dispatch(const DispatchSpec& spec, const ExpertParallel& parallel);

// Rows that a rank has room for, of which `even` come when all experts are chosen as often.
std::int64_t expert_room(double rank_capacity, double even, std::int64_t worst_case);
// The end of a run in which rows of a layer found no room. The message begins with the rank (told_by in comm/world.h).
struct RowsWithoutRoom {
  double rank_capacity = 0;
  std::int64_t rank = 0;        // of the world
  std::string_view block = {};  // empty: not known
  std::int64_t came = 0, room = 0;
  double even = 0;  // rows that come when all experts are chosen as often
};
[[noreturn]] void fail_no_room(const RowsWithoutRoom& rows);
// Rows that each expert has where those that are too many are dropped; no token comes to one twice.
std::int64_t padded_rows(double capacity, std::int64_t choices, std::int64_t experts, std::int64_t tokens);

}  // namespace tera
