#pragma once
// Feed-forward: y = x + down(act(up(norm(x)))). Gated activations (SwiGLU) fuse gate and up into one GEMM: [gate | up].

#include "tera/base/rng.h"
#include "tera/nn/block.h"
#include "tera/nn/dropout.h"
#include "tera/nn/linear.h"
#include "tera/nn/norm.h"

namespace tera {

struct MlpSpec {
  std::string name;  // for random streams
  NormSpec norm;
  LinearSpec up, down;
  Activation activation = Activation::swiglu;
  float hidden_dropout = 0;
  std::uint64_t seed = 0;
  bool recompute_norm = false, recompute_activation = false;
};

struct MlpSaved final : Saved {
  NormStats stats;
  Tensor normed;  // [T,H]: local rows
  Tensor up;      // [T,2F] gated, else [T,F]
  Tensor act;     // [T,F]
  Tensor dup;     // like up
  Tensor ddown;   // [T,H]: gradient of the projection's output; dy itself without dropout and sequence parallelism
};

class Mlp final : public BlockOf<MlpSaved> {
 public:
  Mlp(ParamStore& params, const MlpSpec& spec, const TensorParallel& tp = {});
  const char* kind() const override { return "mlp"; }

 private:
  void f(Run& run, MlpSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, MlpSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, MlpSaved& saved, const Tensor& dy) override;

  Dropout dropout() const { return {spec_.hidden_dropout, hidden_key_, tp_}; }

  MlpSpec spec_;
  TensorParallel tp_;
  Norm norm_;
  Linear up_, down_;
  RngKey hidden_key_;
};

}  // namespace tera
