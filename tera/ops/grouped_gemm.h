#pragma once
// Matrix products of G experts in one call: rows offsets[g] .. offsets[g+1] belong to expert g (expert_rows.h). Sums
// are fp32 whatever the storage. All dense; a and b share one dtype. Rows behind the last group are not read and may be
// NaN.

#include "tera/tensor/tensor.h"

namespace tera {

// out[r] = a[r] b[g], for the rows r of every g; others of out are left alone.
struct GroupedGemmArgs {
  Tensor a;        // [R,K]
  Tensor b;        // [G,K,N]; trans_b: stored [G,N,K]
  Tensor out;      // [R,N], of a's dtype or f32
  Tensor offsets;  // i32 [G+1], ascending within 0..R
  bool trans_b = false;
  std::int64_t usual_rows = 0;  // of R, those that are in groups when all is even: what plans count with; 0: all

  std::int64_t groups() const { return b.dim(0); }
  std::int64_t n() const { return out.dim(1); }
  std::int64_t k() const { return a.dim(1); }
  void check() const;
};

// out[g] += a_g^T b_g, with the rows of g; an empty group adds nothing. Or, written over whatever is there, out[g] =
// a_g^T b_g; that of an empty group is zero.
struct GroupedWeightGradientArgs {
  Tensor a;                     // [R,M]
  Tensor b;                     // [R,N]
  Tensor out;                   // f32 [G,M,N]
  Tensor offsets;               // i32 [G+1], ascending within 0..R
  std::int64_t usual_rows = 0;  // as above
  bool accumulate = true;

  std::int64_t groups() const { return out.dim(0); }
  std::int64_t m() const { return a.dim(1); }
  std::int64_t n() const { return b.dim(1); }
  void check() const;
};

}  // namespace tera
