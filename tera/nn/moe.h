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

#include <optional>

#include "tera/nn/block.h"
#include "tera/nn/dispatch.h"
#include "tera/nn/norm.h"
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
};

class Moe final : public BlockOf<MoeSaved> {
 public:
  Moe(ParamStore& params, const MoeSpec& spec, const TensorParallel& tp = {}, const ExpertParallel& experts = {},
      const ContextParallel& cp = {});
  const char* kind() const override { return "moe"; }
  std::unique_ptr<Saved> make_saved() const override;

 private:
  void f(Run& run, MoeSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, MoeSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, MoeSaved& saved, const Tensor& dy) override;

  void activate(Run& run, const MoeSaved& saved) const;
  void experts_forward(Run& run, MoeSaved& saved, const Tensor& y, const Tensor& residual) const;
  Tensor experts_back(Run& run, MoeSaved& saved, const Tensor& dout, const Tensor& dnormed) const;

  Tensor own_rows(const Tensor& x) const { return takes_share() ? own_.own_rows(x) : x; }
  void gather_shares(Run& run, const Tensor& x) const;
  Tensor rows(Run& run, const MoeSaved& saved, const Tensor& x, std::string_view tag) const;
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
