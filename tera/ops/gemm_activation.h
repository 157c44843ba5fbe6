#pragma once
#include "tera/ops/gemm.h"
#include "tera/ops/pointwise.h"

namespace tera {

// A GEMM and the activation of its output: two kernels, or a GEMM with a fused epilogue where a backend has one
// (Ops::fuses). Either way sums are rounded to the dtype of the GEMM's output before the activation. The activation may
// not write to the GEMM's operands, which may still be read.
struct GemmActivationArgs {
  GemmArgs gemm;
  ActivationArgs activation;  // its x is gemm.out
  void check() const;

  static constexpr OpKind op_kind = OpKind::gemm;
  double flops() const { return gemm.flops(); }
  bool has_shape_of(const GemmActivationArgs& other) const;
};

// A GEMM whose output is the gradient of an activation's output, and the backward of that activation. gemm.out is a
// buffer for that gradient, with undefined contents afterwards.
struct GemmActivationBackArgs {
  GemmArgs gemm;
  ActivationBackArgs activation;  // its dy is gemm.out
  void check() const;

  static constexpr OpKind op_kind = OpKind::gemm;
  double flops() const { return gemm.flops(); }
  bool has_shape_of(const GemmActivationBackArgs& other) const;
};

}  // namespace tera
