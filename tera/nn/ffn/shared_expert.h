#pragma once
// The shared expert, which every row passes beside its routed experts: residual + down(act(up(x))), or with a gate
//
//   residual + sigmoid(x w) * down(act(up(x)))        w [1,H]
//
// The gate is a router with one expert and sigmoid scores, and its weight is applied between the GEMMs, as those of
// routed experts are (moe.h).

#include <optional>

#include "tera/nn/ffn/router.h"
#include "tera/nn/linear.h"

namespace tera {

struct SharedExpertSpec {
  LinearSpec up, down;
  std::string gate;  // files hold gate.weight; empty: none
  float gate_std = 0;
};

// t rows of this rank, T of the microbatch.
struct SharedExpertSaved {
  Tensor up, act, dup;  // all rows: [T,2F] [T,F] [T,2F]; without a gate in the activation [T,F] each
  Routes gate;          // routes of local rows
  Tensor weights;       // f32 [T,1]: of all rows
  Tensor sources;       // i32 [T]: each row's own number
  Tensor dlogits;       // [t,1]
  // State of one B, in scratch.
  Tensor added;                         // [t,H]: added to the gradient of x
  Tensor all_dweights, local_dweights;  // f32 [T,1], [t,1]: of the gate
};

class SharedExpert {
 public:
  SharedExpert(ParamStore& params, const SharedExpertSpec& spec, Activation activation, const TensorParallel& tp = {});

  // Each direction is two calls, so that both can overlap transfers. x, residual and out [t,H]; residual none: not
  // added.
  void forward_up(Run& run, SharedExpertSaved& saved, const Tensor& x) const;
  void forward_down(Run& run, const SharedExpertSaved& saved, const Tensor& residual, const Tensor& out) const;

  // Scratch of take_for_back() is needed until add_gradient().
  void take_for_back(Run& run, SharedExpertSaved& saved, const Tensor& x) const;
  void back_down(Run& run, SharedExpertSaved& saved, const Tensor& dout) const;
  void back_up(Run& run, const SharedExpertSaved& saved) const;
  void add_gradient(Run& run, SharedExpertSaved& saved, const Tensor& dx) const;
  void backward_weight(Run& run, const SharedExpertSaved& saved, const Tensor& x, const Tensor& dout) const;

 private:
  void weigh(Run& run, SharedExpertSaved& saved, const Tensor& x) const;

  Activation activation_;
  TensorParallel tp_;
  Linear up_, down_;
  std::optional<Router> gate_;
};

}  // namespace tera
