#pragma once
// Mixture of experts (MoE): the sum over a row's K experts of weight * down(act(up(x))) (+ the shared expert), a
// branch. The router chooses the experts and their weights (router.h).
//
//   x [t,H] --router-------> experts, weights [t,K]
//      |                        |  group_rows: rows of one expert lie together
//      +--- permute ----> rows [R,H] --grouped GEMM--> up [R,2F] --act, times weight--> act [R,F]
//                                                                                         |
//   y [t,H] <---- unpermute: the sum of a row's K results ---- [R,H] <--grouped GEMM------+
//
// A weight scales a row between the GEMMs, so the output of the second one need not be kept. Rows are permuted again
// where W needs them, K times as many as there are tokens. How many rows an expert has stays on the device.
//
// With expert parallelism each rank has some of the experts, or a slice of their features, or both (expert_parallel.h),
// and rows are sent to the ranks of their experts (dispatch.h). A rank sends local rows: those of sequence parallelism,
// or, where tensor-parallel ranks all have the same rows, its shard of them; results of the shards are then gathered.
//
// F and B have phases (phased.h), divided where rows are in flight. The schedule may overlap another block's
// computation, and the shared expert can run inside of them:
//
//   F   router         | dispatch rows      | experts; combine       | y
//                        (shared: up)         (shared: down)
//   B   dispatch dout  | backward of down   | of up; combine         | router
//       (shared: down)                        (shared: up)

#include <optional>

#include "tera/nn/branch.h"
#include "tera/nn/ffn/dispatch.h"
#include "tera/nn/ffn/router.h"
#include "tera/nn/ffn/shared_expert.h"

namespace tera {

// The experts' weights, one parameter each for up and down; the name of expert e in files is prefix + e + suffix.
struct ExpertsSpec {
  std::string name;  // prefix of the parameters' names
  std::string prefix;
  std::vector<std::string> up;  // suffixes: gate and up, or up alone
  std::string down;
  std::int64_t experts = 0, hidden = 0, ffn = 0;
  float up_std = 0, down_std = 0;
};

struct MoeSpec {
  std::string name;  // for messages
  RouterSpec router;
  ExpertsSpec experts;
  std::optional<SharedExpertSpec> shared;
  Activation activation = Activation::swiglu;
  TokenDispatcher dispatcher = TokenDispatcher::allgather;
  double rank_capacity = 0, expert_capacity = 0;  // as in DispatchSpec
  TokenDropPolicy drop = TokenDropPolicy::probs;
  bool recompute_activation = false;
  bool overlap_shared = false;  // the shared expert is computed while rows are in flight
  // The schedule overlaps another block's phases with this one's: scratch is spent on starting transfers early, and
  // rows that B has received are kept for a W that follows at once.
  bool overlap_calls = false;

  std::unique_ptr<Branch> build(const BuildContext& context) const;
};

// T rows of the microbatch, of which x has all or with sequence parallelism some; t local rows, R rows of local
// experts.
struct MoeSaved final : Saved {
  Routes routes;  // routes of local rows
  Dispatched dispatched;
  Tensor up;       // [R,2F] gated, else [R,F]
  Tensor act;      // [R,F]
  Tensor dup;      // like up
  Tensor dlogits;  // [t,E]
  SharedExpertSaved shared;
  Tensor dout_rows;  // [R,H]: dout as dispatched in B, kept for W; none: W dispatches it again

  // State of one call, in scratch.
  std::size_t mark = 0;  // scratch beyond it is freed before the call ends
  Tensor shared_out;     // like x: residual + shared expert
  Tensor dx_experts;     // [t,H]: the experts' terms of the gradient of x
  Tensor dweights;       // f32 [A,K]
  InFlightTransfer rows, sums, weight_gradients;
};

class Moe final : public Branch {
 public:
  Moe(const MoeSpec& spec, const BuildContext& context);
  const char* kind() const override { return "moe"; }
  std::unique_ptr<Saved> make_saved() const override;

  int phases() const override { return 4; }
  void forward(int phase, Run& run, Saved& saved, BranchInput& input, const Tensor& y,
               const Tensor& residual) const override;
  Ticket backward_input(int phase, Run& run, Saved& saved, BranchInput& input, const Tensor& dy) const override;
  void backward_weight(Run& run, Saved& saved, BranchInput& input, const Tensor& dy) const override;

 private:
  void route(Run& run, MoeSaved& saved, const Tensor& x, const Tensor& residual) const;
  void dispatch_rows(Run& run, MoeSaved& saved, const Tensor& x, const Tensor& residual) const;
  void experts_forward(Run& run, MoeSaved& saved, const Tensor& y, const Tensor& residual) const;
  void dispatch_dout(Run& run, MoeSaved& saved, const Tensor& dy) const;
  void back_down(Run& run, MoeSaved& saved, const Tensor& dy) const;
  void back_up(Run& run, MoeSaved& saved) const;
  void finish_back(Run& run, MoeSaved& saved, const Tensor& dy, const Tensor& dx) const;

  void activate(Run& run, const MoeSaved& saved) const;
  Tensor residual_of(const MoeSaved& saved, const Tensor& residual) const;
  Tensor local_rows(const Tensor& x) const { return x && shards_rows() ? routing_tp_.local_rows(x) : x; }
  void gather_shards(Run& run, const Tensor& x) const;
  InFlightTransfer start_rows(Run& run, const MoeSaved& saved, const Tensor& x) const;
  Tensor finish_rows(Run& run, const MoeSaved& saved, const InFlightTransfer& transfer) const;
  Tensor groups(const Tensor& flat) const {
    return flat.view(shape(local_experts_, flat.dim(0) / local_experts_, flat.dim(1)));
  }
  bool shards_rows() const { return routing_tp_.cuts_rows() && !tp_.cuts_rows(); }
  bool gated() const { return is_gated(spec_.activation); }

  MoeSpec spec_;
  TensorParallel tp_;          // how rows of x are split over ranks
  TensorParallel routing_tp_;  // how rows that are routed are: also where all ranks have the same x
  Router router_;
  std::unique_ptr<Dispatch> dispatch_;
  std::int64_t local_experts_, ffn_;  // experts of this rank, and features of each here
  Param* up_;                         // [G 2F,H]: per expert [gate | up]
  Param* down_;                       // [G H,F]
  std::optional<SharedExpert> shared_;
};

}  // namespace tera
