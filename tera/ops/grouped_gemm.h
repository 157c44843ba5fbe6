#pragma once
// Grouped GEMM: the GEMMs of G experts in one call; rows offsets[g] .. offsets[g+1] belong to expert g (expert_rows.h).
// Accumulation is in fp32 for all dtypes. All dense; a and b share one dtype. Rows after the last group are not read
// and may be NaN.

#include "tera/ops/gemm.h"
#include "tera/tensor/tensor.h"

namespace tera {

// out[r] = a[r] b[g], for the rows r of every g; other rows of out are not written.
struct GroupedGemmArgs {
  Tensor a;        // [R,K]
  Tensor b;        // [G,K,N]; trans_b: stored [G,N,K]
  Tensor out;      // [R,N], of a's dtype or f32
  Tensor offsets;  // i32 [G+1], ascending within 0..R
  bool trans_b = false;
  std::int64_t expected_rows = 0;  // rows of R in groups under balanced routing, for flop counts; 0: all R

  std::int64_t groups() const { return b.dim(0); }
  std::int64_t n() const { return out.dim(1); }
  std::int64_t k() const { return a.dim(1); }
  void check() const;

  static constexpr OpKind op_kind = OpKind::gemm;
  // Which rows are in groups is in memory of the device.
  double flops() const { return gemm_flops(expected_rows > 0 ? expected_rows : a.dim(0), n(), k()); }
};

// The weight gradient: out[g] += a_g^T b_g, with the rows of g; an empty group adds nothing. Without accumulate, out is
// overwritten: out[g] = a_g^T b_g, which is zero for an empty group.
struct GroupedWeightGradientArgs {
  Tensor a;                        // [R,M]
  Tensor b;                        // [R,N]
  Tensor out;                      // f32 [G,M,N]
  Tensor offsets;                  // i32 [G+1], ascending within 0..R
  std::int64_t expected_rows = 0;  // as in GroupedGemmArgs
  bool accumulate = true;

  std::int64_t groups() const { return out.dim(0); }
  std::int64_t m() const { return a.dim(1); }
  std::int64_t n() const { return b.dim(1); }
  void check() const;

  static constexpr OpKind op_kind = OpKind::gemm;
  double flops() const { return gemm_flops(m(), n(), expected_rows > 0 ? expected_rows : a.dim(0)); }
};

}  // namespace tera
