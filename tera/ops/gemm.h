#pragma once
#include "tera/ops/op_list.h"
#include "tera/tensor/tensor.h"

namespace tera {

// A multiply-add is two.
constexpr double gemm_flops(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

// A GEMM: out = op(a) op(b) (+ bias) (+ residual), or out += op(a) op(b). Accumulation is in fp32 for all dtypes.
// a [M,K] (trans_a: stored [K,M]), b [K,N] (trans_b: stored [N,K]), out [M,N]; rows may be strided.
// a and b share one dtype; out is that or f32; bias [N] and residual [M,N] have the dtype of out or of a.
struct GemmArgs {
  Tensor a, b, out;
  Tensor bias;      // [N], optional
  Tensor residual;  // [M,N], optional; may be out itself
  bool trans_a = false, trans_b = false;
  bool accumulate = false;  // excludes bias and residual

  std::int64_t m() const { return out.dim(0); }
  std::int64_t n() const { return out.dim(1); }
  std::int64_t k() const { return a.dim(trans_a ? 0 : 1); }
  void check() const;

  static constexpr OpKind op_kind = OpKind::gemm;
  double flops() const { return gemm_flops(m(), n(), k()); }
  bool has_shape_of(const GemmArgs& other) const;  // a choice of kernel for one holds for the other
};

// out += sum of the rows of x: the gradient of a bias. x [M,N], rows may be strided; out f32 [N].
struct ColumnSumArgs {
  Tensor x, out;
  void check() const;
};

}  // namespace tera
