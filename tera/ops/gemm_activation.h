#pragma once
#include "tera/ops/gemm.h"
#include "tera/ops/pointwise.h"

namespace tera {

// A product and the activation of what it gives: one call after the other, or one kernel where a backend has it
// (Ops::fuses). Sums are rounded to the dtype of the product's output before the activation, either way. The activation
// may not write to the product's operands, which may still be read.
struct GemmActivationArgs {
  GemmArgs product;
  ActivationArgs activation;  // its x is the product's out
  void check() const;
};

// A product and the way back through an activation. What the product gives is room for the gradient of the activation's
// output, and is not defined afterwards.
struct GemmActivationBackArgs {
  GemmArgs product;
  ActivationBackArgs activation;  // its dy is the product's out
  void check() const;
};

}  // namespace tera
