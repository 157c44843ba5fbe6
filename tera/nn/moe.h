#pragma once
// y = x + sum over a row's K experts of weight * down(act(up(norm(x)))) (+ a shared expert's). A mixture of experts:
// which ones, and how much each counts, the router says (router.h).
//
//   normed [t,H] --router--> experts, weights [t,K]
//      |                        |  group_rows: rows of one expert lie together
//      +--- permute ----> rows [R,H] --grouped product--> up [R,2F] --act, times weight--> act [R,F]
//                                                                                            |
//   y [t,H] <---- unpermute: the sum of a row's K results ---- [R,H] <--grouped product------+
//
// A weight scales a row between the products, so what comes out of the second one need not be kept. Rows are copied
// again where W needs them, K times as many as there are tokens. How many rows an expert has stays on the device.
//
// Over ranks, each has some of the experts, or a part of their features, or both (expert_parallel.h), and rows go where
// their experts are (dispatch.h). A rank sends rows of its own: those that sequence parallelism gives it, or, where
// tensor-parallel ranks all have the same rows, its share of them; what comes of the shares is then gathered.
//
// F and B are in parts, cut where rows are under way; what else is computed meanwhile is not this block's concern, but
// for the shared expert, which can be played inside of them:
//
//   F   norm, router | rows leave           | experts; sums leave          | y
//                      (shared: up)           (shared: down)
//   B   dout leaves  | back through down    | and through up; sums leave   | router, norm
//       (shared: down)                        (shared: up)

#include <optional>

#include "tera/nn/block.h"
#include "tera/nn/dispatch.h"
#include "tera/nn/norm.h"
#include "tera/nn/parts.h"
#include "tera/nn/router.h"
#include "tera/nn/shared_expert.h"

namespace tera {

// The experts' weights, one parameter each for up and down; the name of expert e in files is prefix + e + suffix.
struct ExpertsSpec {
  std::string name;  // of the parameters
  std::string prefix;
  std::vector<std::string> up;  // suffixes: gate and up, or up alone
  std::string down;
  std::int64_t experts = 0, hidden = 0, ffn = 0;
  float up_std = 0, down_std = 0;
};

struct MoeSpec {
  std::string name;  // for random streams
  NormSpec norm;
  RouterSpec router;
  ExpertsSpec experts;
  std::optional<SharedExpertSpec> shared;
  Activation activation = Activation::swiglu;
  TokenDispatcher dispatcher = TokenDispatcher::allgather;
  double rank_capacity = 0, expert_capacity = 0;  // as in DispatchSpec
  TokenDropPolicy drop = TokenDropPolicy::probs;
  float hidden_dropout = 0;
  std::uint64_t seed = 0;
  bool recompute_norm = false, recompute_activation = false;
  bool overlap_shared = false;  // the shared expert is computed while rows are under way
  // Other calls are played between the parts: what saves waiting is worth scratch, and rows that B got are kept for a W
  // that follows at once.
  bool overlap_calls = false;
};

// T rows of the microbatch, of which x has all or a part; t own rows of this rank, R rows of its experts.
struct MoeSaved final : Saved {
  NormStats stats;
  Tensor normed;          // like x
  Routes routes;          // of own rows
  Dispatched dispatched;  // where they go
  Tensor up;              // [R,2F] gated, else [R,F]
  Tensor act;             // [R,F]
  Tensor dup;             // like up
  Tensor dlogits;         // [t,E]
  Tensor dout;            // like x: gradient of what is added to it; dy itself without dropout
  SharedExpertSaved shared;
  Tensor dout_rows;  // [R,H]: dout where the experts are, or none; W then asks for it

  // Of one call, in scratch.
  std::size_t mark = 0;    // what is behind it ends before the call
  Tensor shared_out;       // like x: the residual with the shared expert's
  Tensor dnormed;          // like x
  Tensor dnormed_experts;  // [t,H]: what the experts add to it
  Tensor dweights;         // f32 [A,K]
  Travel rows, sums, weight_gradients;
};

class Moe final : public BlockOf<MoeSaved>, public InParts {
 public:
  Moe(ParamStore& params, const MoeSpec& spec, const TensorParallel& tp = {}, const ExpertParallel& experts = {},
      const ContextParallel& cp = {});
  const char* kind() const override { return "moe"; }
  std::unique_ptr<Saved> make_saved() const override;

  int parts() const override { return 4; }
  void forward_part(int part, Run& run, Saved& saved, const Tensor& x, const Tensor& y) override;
  void backward_input_part(int part, Run& run, Saved& saved, const Tensor& x, const Tensor& dy,
                           const Tensor& dx) override;

 private:
  void f(Run& run, MoeSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, MoeSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, MoeSaved& saved, const Tensor& dy) override;
  void f_part(int part, Run& run, MoeSaved& saved, const Tensor& x, const Tensor& y) const;
  void b_part(int part, Run& run, MoeSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) const;

  void route(Run& run, MoeSaved& saved, const Tensor& x) const;
  void rows_leave(Run& run, MoeSaved& saved, const Tensor& x) const;
  void experts_forward(Run& run, MoeSaved& saved, const Tensor& x, const Tensor& y) const;
  void finish_forward(Run& run, MoeSaved& saved, const Tensor& x, const Tensor& y) const;
  void dout_leaves(Run& run, MoeSaved& saved, const Tensor& x, const Tensor& dy) const;
  void back_down(Run& run, MoeSaved& saved) const;
  void back_up(Run& run, MoeSaved& saved) const;
  void finish_back(Run& run, MoeSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) const;

  void activate(Run& run, const MoeSaved& saved) const;
  Tensor residual_of(const Run& run, const MoeSaved& saved, const Tensor& x) const;
  Tensor own_rows(const Tensor& x) const { return takes_share() ? own_.own_rows(x) : x; }
  void gather_shares(Run& run, const Tensor& x) const;
  Travel start_rows(Run& run, const MoeSaved& saved, const Tensor& x) const;
  Tensor finish_rows(Run& run, const MoeSaved& saved, const Travel& travel) const;
  Tensor groups(const Tensor& flat) const { return flat.view(shape(held_, flat.dim(0) / held_, flat.dim(1))); }
  bool takes_share() const { return own_.cuts_rows() && !tp_.cuts_rows(); }
  bool drops(const Run& run) const { return spec_.hidden_dropout > 0 && run.mb.training; }
  bool gated() const { return is_gated(spec_.activation); }

  MoeSpec spec_;
  TensorParallel tp_;   // how x is cut
  TensorParallel own_;  // and what is routed here
  Norm norm_;
  Router router_;
  std::unique_ptr<Dispatch> dispatch_;
  std::int64_t held_, ffn_;  // experts of this rank, and their features here
  Param* up_;                // [G 2F,H]: per expert [gate | up]
  Param* down_;              // [G H,F]
  std::optional<SharedExpert> shared_;
  RngKey hidden_key_;
};

}  // namespace tera
