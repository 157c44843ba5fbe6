#pragma once
// Feed-forward: down(act(up(x))), a branch. Gated activations (SwiGLU) fuse gate and up into one GEMM: [gate | up].

#include "tera/nn/branch.h"
#include "tera/nn/linear.h"

namespace tera {

struct MlpSpec {
  LinearSpec up, down;
  Activation activation = Activation::swiglu;
  bool recompute_activation = false;

  std::unique_ptr<Branch> build(const BuildContext& context) const;
};

struct MlpSaved final : Saved {
  Tensor up;     // [T,2F] gated, else [T,F]
  Tensor act;    // [T,F]
  Tensor dup;    // like up
  Tensor ddown;  // [T,H]: dy, of all rows or of this rank's (Linear::OutputGradient)
};

class Mlp final : public BranchOf<MlpSaved> {
 public:
  Mlp(const MlpSpec& spec, const BuildContext& context);
  const char* kind() const override { return "mlp"; }
  bool w_reads_dy(const Run& run) const override { return down_.w_reads_dy(run); }

 private:
  void f(Run& run, MlpSaved& saved, BranchInput& input, const Tensor& y, const Tensor& residual) const override;
  Ticket b(Run& run, MlpSaved& saved, BranchInput& input, const Tensor& dy) const override;
  void w(Run& run, MlpSaved& saved, BranchInput& input, const Tensor& dy) const override;

  Activation activation_;
  bool recompute_activation_;
  Linear up_, down_;
};

}  // namespace tera
