#pragma once
// The router: top-k experts of each row and their weights. A leaf: the gate's weight [E,H] and calls with explicit
// tensors. The gate's GEMM is summed and kept in fp32.
//
// Rows are local: with sequence or context parallelism each rank routes its shard of them, and statistics of all rows
// of the microbatch (how many chose an expert) are summed over the ranks.
//
// Two tensors of router state follow from the choices of a full step (optim/expert_load.h): a bias on the scores, for
// the choice alone (auxiliary-loss-free load balancing), and the fraction of all choices that each expert had, which
// the auxiliary loss over the global batch takes from the step before.

#include "tera/nn/context_parallel.h"
#include "tera/nn/params.h"
#include "tera/nn/run.h"
#include "tera/nn/tensor_parallel.h"
#include "tera/ops/route.h"

namespace tera {

struct RouterSpec {
  std::string name;  // files hold name.weight
  std::int64_t hidden = 0, experts = 0;
  RouterRule rule;
  float init_std = 0;
  // Coefficients of the auxiliary load-balancing losses and of the z-loss; 0: none.
  double balance = 0;           // over the rows of a microbatch
  double sequence_balance = 0;  // over the rows of each sequence, the mean of all sequences
  double global_balance = 0;    // over the rows of the step before
  double z = 0;                 // z-loss: mean square of the log-sum-exp of a row's logits
  std::string bias;             // the name of the bias in files; empty: none
  std::int64_t layer = -1;      // index among layers with experts, in the counts of a step; negative: not counted

  bool needs_counts() const { return balance > 0 || sequence_balance > 0; }
  bool balances() const { return needs_counts() || global_balance > 0; }
};

// What route() leaves for back(); t rows of this rank, p sequences in the microbatch.
struct Routes {
  Tensor logits;              // f32 [t,E]
  Tensor experts;             // i32 [t,K]
  Tensor weights;             // f32 [t,K]
  Tensor counts, score_sums;  // i32, f32 [p,E]; of all rows of the microbatch where a loss needs them
  Tensor z_sum;               // f32 [1], of local rows
};

class Router {
 public:
  Router(ParamStore& params, const RouterSpec& spec, const TensorParallel& tp = {}, const ContextParallel& cp = {});

  std::int64_t topk() const { return spec_.rule.topk; }
  std::int64_t experts() const { return spec_.experts; }

  Routes take(Run& run, std::int64_t rows) const;  // in the stash, until B
  void route(Run& run, const Tensor& normed, const Routes& routes) const;

  // The gradient of the logits, in the dtype of the rows, kept until W. dweights f32 [t,K].
  Tensor back(Run& run, const Routes& routes, const Tensor& dweights, DType dtype) const;
  // dnormed = added + the gradient through the gate; not in place, which would take a slower GEMM.
  void input_gradient(Run& run, const Tensor& dlogits, const Tensor& added, const Tensor& dnormed) const;  // [t,H]
  void backward_weight(Run& run, const Tensor& dlogits, const Tensor& normed) const;

 private:
  struct Sequences {  // sequences of the microbatch, or one for all of its rows
    std::int64_t number = 1, rows = 0, first_row = 0;
  };
  Sequences sequences(const Run& run, std::int64_t rows) const;
  Tensor loads(Run& run, const Routes& routes) const;
  Tensor loss_sum_of(Run& run, AuxLoss loss) const;
  void sum_over_ranks(Run& run, const Tensor& x) const;
  std::int64_t all_tokens(const Run& run) const { return run.mb.tokens.dim(0) * cp_.size(); }
  void count(Run& run, const Routes& routes) const;

  RouterSpec spec_;
  TensorParallel tp_;
  ContextParallel cp_;
  Param* weight_;               // [E,H]
  Param* bias_ = nullptr;       // f32 [E]
  Param* fractions_ = nullptr;  // f32 [E], of all choices of the step before
};

}  // namespace tera
