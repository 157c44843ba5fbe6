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
};

class SharedExpert {
 public:
  SharedExpert(ParamStore& params, const SharedExpertSpec& spec, Activation activation, const TensorParallel& tp = {});

  // x and the result [t,H]; the result is scratch. No residual: nothing is added.
  Tensor forward(Run& run, SharedExpertSaved& saved, const Tensor& x, const Tensor& residual) const;
  void add_input_gradient(Run& run, SharedExpertSaved& saved, const Tensor& dout, const Tensor& dx) const;
  void backward_weight(Run& run, const SharedExpertSaved& saved, const Tensor& x, const Tensor& dout) const;

 private:
  void weigh(Run& run, SharedExpertSaved& saved, const Tensor& x) const;
  Tensor back_through_activation(Run& run, const SharedExpertSaved& saved, const Tensor& dact) const;

  Activation activation_;
  TensorParallel tp_;
  Linear up_, down_;
  std::optional<Router> gate_;
};

}  // namespace tera
