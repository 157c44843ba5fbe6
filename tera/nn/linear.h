#pragma once
// y = x W^T + b (+ residual). A leaf: parameters and calls with explicit tensors.
//
// Over tensor-parallel ranks a weight [out,in] is sharded by its output features (column parallel in Megatron's words)
// or by its input features (row parallel):
//
//   Split::out   x all features -> y this rank's       B: dx is a sum over ranks
//   Split::in    x this rank's  -> y is a sum over ranks    B: dx this rank's
//   Split::none  the full weight on every rank, for the rows that it has
//
// With sequence parallelism the side with all features has only this rank's rows: an all-gather and a reduce-scatter
// are made here.

#include "tera/nn/params.h"
#include "tera/nn/run.h"
#include "tera/nn/tensor_parallel.h"

namespace tera {

enum class Split : std::uint8_t { none, out, in };

struct LinearSpec {
  struct Out {
    std::string name;  // part, e.g. model.layers.0.self_attn.q_proj; files hold name.weight and name.bias
    std::int64_t rows;
    std::int64_t units = 0;      // rows are sharded into at most so many (KV heads); more ranks replicate one. 0: any
    std::int64_t first_row = 0;  // in the tensor of that name, which has file_rows
    std::int64_t file_rows = 0;  // 0: rows, all of it
  };
  std::string name;  // name of the parameter; parts of a fused weight have names of their own
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

  std::int64_t out_features() const { return out_; }                                            // features on this rank
  void forward(Run& run, const Tensor& x, const Tensor& y, const Tensor& residual = {}) const;  // x [T,in]  y [T,out]

  // y and the activation of it, fused where the backend can; activation.x is y, which must be no sum over ranks.
  void forward(Run& run, const Tensor& x, const Tensor& y, const ActivationArgs& activation) const;

  // dy as backward_input takes it: of all rows, gathered into memory from `arena` with sequence parallelism.
  Tensor gradient_of_all_rows(Run& run, const Tensor& dy, Arena& arena, std::string_view tag) const;
  // dy of all rows for B, and what W is given: with sequence parallelism the gathered rows where W follows at once,
  // else dy, which W gathers again.
  struct OutputGradient {
    Tensor all, kept;
  };
  OutputGradient take_output_gradient(Run& run, const Tensor& dy, std::string_view tag) const;
  // Whether W is given dy itself.
  bool w_reads_dy(const Run& run) const { return !(run.w_follows && tp_.cuts_rows()); }
  // Makes dx and the bias gradient. dx is ready after the ticket; what is computed until then overlaps the reduction.
  Ticket backward_input(Run& run, const Tensor& dy, const Tensor& dx) const;
  // The bias gradient and the gradient through the activation that made x, fused where the backend can; activation.dy
  // is a buffer for the gradient of x, which must be no sum over ranks.
  void backward_input(Run& run, const Tensor& dy, const ActivationBackArgs& activation) const;
  void backward_weight(Run& run, const Tensor& x, const Tensor& dy) const;  // dy of all rows or of this rank's

 private:
  std::vector<Part> parts_of(const LinearSpec& spec, bool bias) const;
  GemmArgs gemm(const Tensor& all, const Tensor& y, const Tensor& residual) const;
  void forward_summed(Run& run, const Tensor& x, const Tensor& y, const Tensor& residual) const;
  void bias_gradient(Run& run, const Tensor& dy) const;

  TensorParallel tp_;
  Split split_;
  Param* weight_;          // [out,in]
  Param* bias_ = nullptr;  // [out]
  std::int64_t out_ = 0;
};

}  // namespace tera
