#pragma once
// y = x W^T + b (+ residual). A leaf: parameters and calls with explicit tensors.
//
// Over tensor-parallel ranks a weight [out,in] is cut by its output features or by its input features:
//
//   Split::out   x all features -> y this rank's       B: dx is a sum over ranks
//   Split::in    x this rank's  -> y is a sum over ranks    B: dx this rank's
//   Split::none  the whole weight on every rank, for the rows that it has
//
// With sequence parallelism the side with all features has only this rank's rows; it is gathered and scattered here.

#include "tera/nn/params.h"
#include "tera/nn/run.h"
#include "tera/nn/tensor_parallel.h"

namespace tera {

enum class Split : std::uint8_t { none, out, in };

struct LinearSpec {
  struct Out {
    std::string name;  // of the part, e.g. model.layers.0.self_attn.q_proj; files hold name.weight and name.bias
    std::int64_t rows;
    std::int64_t units = 0;  // rows are cut into at most so many pieces (heads); beyond that ranks share one. 0: any
    std::int64_t first_row = 0;  // in the tensor of that name, which has file_rows
    std::int64_t file_rows = 0;  // 0: rows, all of it
  };
  std::string name;  // of the parameter; parts of a fused weight have names of their own
  std::int64_t in = 0;
  std::vector<Out> out;  // fused in this order
  bool bias = false;
  float init_std = 0;
  bool transposed = false;
  Split split = Split::none;
};

class Linear {
 public:
  Linear(ParamStore& params, const LinearSpec& spec, const TensorParallel& tp = {});

  std::int64_t out_features() const { return out_; }                                            // of this rank
  void forward(Run& run, const Tensor& x, const Tensor& y, const Tensor& residual = {}) const;  // x [T,in]  y [T,out]

  // The same, and the activation behind it; its x is y, which is no sum over ranks.
  void forward(Run& run, const Tensor& x, const Tensor& y, const ActivationArgs& activation) const;

  // dy as backward_input takes it: of all rows. Gathered rows come from `arena`.
  Tensor gradient_of_all_rows(Run& run, const Tensor& dy, Arena& arena, std::string_view tag) const;
  // And the bias gradient. dx is there after the ticket; meanwhile this rank may do something else.
  Ticket backward_input(Run& run, const Tensor& dy, const Tensor& dx) const;
  // The same, and back through the activation before it; its dy is room for dx, which is no sum over ranks.
  void backward_input(Run& run, const Tensor& dy, const ActivationBackArgs& activation) const;
  void backward_weight(Run& run, const Tensor& x, const Tensor& dy) const;  // dy of all rows or of this rank's

 private:
  std::vector<Part> parts_of(const LinearSpec& spec, bool bias) const;
  GemmArgs product(const Tensor& all, const Tensor& y, const Tensor& residual) const;
  void forward_summed(Run& run, const Tensor& x, const Tensor& y, const Tensor& residual) const;
  void bias_gradient(Run& run, const Tensor& dy) const;

  TensorParallel tp_;
  Split split_;
  Param* weight_;          // [out,in]
  Param* bias_ = nullptr;  // [out]
  std::int64_t out_ = 0;
};

}  // namespace tera
