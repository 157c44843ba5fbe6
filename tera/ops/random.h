#pragma once
#include "tera/base/rng.h"
#include "tera/tensor/tensor.h"

namespace tera {

// Elements of out become std times draws of the standard normal stream under `key`: element j of row i is draw
// first + i * row_stride + j, with all dims but the last as rows. With its own first and row_stride, a slice gets the
// same bits as that part of the full tensor. Float, dense.
struct NormalArgs {
  Tensor out;
  RngKey key;
  float std = 1;
  std::int64_t first = 0;
  std::int64_t row_stride = 0;  // 0: rows follow each other without a gap
  void check() const;
};

}  // namespace tera
