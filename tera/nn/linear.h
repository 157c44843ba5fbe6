#pragma once
// y = x W^T + b (+ residual). A leaf: parameters and calls with explicit tensors.

#include "tera/nn/params.h"
#include "tera/nn/run.h"

namespace tera {

struct LinearSpec {
  struct Out {
    std::string name;  // of the part, e.g. model.layers.0.self_attn.q_proj; files hold name.weight and name.bias
    std::int64_t rows;
  };
  std::string name;  // of the parameter; parts of a fused weight have names of their own
  std::int64_t in = 0;
  std::vector<Out> out;  // fused in this order
  bool bias = false;
  float init_std = 0;
  bool transposed = false;
};

class Linear {
 public:
  Linear(ParamStore& params, const LinearSpec& spec);

  std::int64_t out_features() const { return out_; }
  void forward(Run& run, const Tensor& x, const Tensor& y, const Tensor& residual = {}) const;  // x [T,in]  y [T,out]
  void backward_input(Run& run, const Tensor& dy, const Tensor& dx) const;                      // and the bias gradient
  void backward_weight(Run& run, const Tensor& x, const Tensor& dy) const;

 private:
  Param* weight_;          // [out,in]
  Param* bias_ = nullptr;  // [out]
  std::int64_t out_ = 0;
};

}  // namespace tera
