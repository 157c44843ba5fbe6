#pragma once
// The expert of a layer that every row passes, beside those that it chooses: residual + down(act(up(x))), or with a
// gate
//
//   residual + sigmoid(x w) * down(act(up(x)))        w [1,H]
//
// The gate is a router with one expert and sigmoid scores, and its weight is applied between the products, as those of
// chosen experts are (moe.h).

#include <optional>

#include "tera/nn/linear.h"
#include "tera/nn/router.h"

namespace tera {

struct SharedExpertSpec {
  LinearSpec up, down;
  std::string gate;  // files hold gate.weight; empty: none
  float gate_std = 0;
};

// t rows of this rank, T of the microbatch.
struct SharedExpertSaved {
  Tensor up, act, dup;  // of all rows [T,2F] [T,F] [T,2F]; without a gate in the activation [T,F] each
  Routes gate;          // of own rows
  Tensor weights;       // f32 [T,1]: of all rows
  Tensor sources;       // i32 [T]: each row's own number
  Tensor dlogits;       // [t,1]
  // Of one B, in scratch.
  Tensor added;                       // [t,H]: to the gradient of x
  Tensor all_dweights, own_dweights;  // f32 [T,1], [t,1]: of the gate
};

class SharedExpert {
 public:
  SharedExpert(ParamStore& params, const SharedExpertSpec& spec, Activation activation, const TensorParallel& tp = {});

  // Each in two parts, so that both can be beside something else. x, residual and out [t,H]; none: nothing is added.
  void forward_up(Run& run, SharedExpertSaved& saved, const Tensor& x) const;
  void forward_down(Run& run, const SharedExpertSaved& saved, const Tensor& residual, const Tensor& out) const;

  // What take_for_back() takes from scratch stands until the gradient is added to dx.
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
