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
// Over tensor-parallel ranks the products are cut as those of an Mlp are: every rank has a part of the features of
// every expert, and all rows.

#include <optional>

#include "tera/nn/block.h"
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
  float hidden_dropout = 0;
  std::uint64_t seed = 0;
  bool recompute_norm = false, recompute_activation = false;
};

// t rows of this rank, T of the microbatch, R = T K.
struct MoeSaved final : Saved {
  NormStats stats;
  Tensor normed;   // [t,H]
  Routes routes;   // of own rows
  Tensor weights;  // f32 [T,K]: of all rows
  Tensor offsets;  // i32 [E+1]
  Tensor sources;  // i32 [R]
  Tensor places;   // i32 [T,K]
  Tensor up;       // [R,2F] gated, else [R,F]
  Tensor act;      // [R,F]
  Tensor dup;      // like up
  Tensor dlogits;  // [t,E]
  Tensor dout;     // [t,H]: gradient of what is added to x; dy itself without dropout
  SharedExpertSaved shared;
};

class Moe final : public BlockOf<MoeSaved> {
 public:
  Moe(ParamStore& params, const MoeSpec& spec, const TensorParallel& tp = {});
  const char* kind() const override { return "moe"; }

 private:
  void f(Run& run, MoeSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, MoeSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, MoeSaved& saved, const Tensor& dy) override;

  void group(Run& run, MoeSaved& saved) const;
  void activate(Run& run, const MoeSaved& saved) const;
  void sum_experts(Run& run, const MoeSaved& saved, const Tensor& y, const Tensor& residual) const;
  Tensor experts_back(Run& run, MoeSaved& saved, const Tensor& dout, const Tensor& dnormed) const;

  Tensor permuted(Run& run, const MoeSaved& saved, const Tensor& all, std::string_view tag) const;
  Tensor groups(const Tensor& flat) const { return flat.view(shape(experts_, flat.dim(0) / experts_, flat.dim(1))); }
  bool drops(const Run& run) const { return spec_.hidden_dropout > 0 && run.mb.training; }
  bool gated() const { return is_gated(spec_.activation); }

  MoeSpec spec_;
  TensorParallel tp_;
  Norm norm_;
  Router router_;
  std::int64_t experts_, ffn_;  // ffn_: features of an expert on this rank
  Param* up_;                   // [E 2F,H]: per expert [gate | up]
  Param* down_;                 // [E H,F]
  std::optional<SharedExpert> shared_;
  RngKey hidden_key_;
};

}  // namespace tera
