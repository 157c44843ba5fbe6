#pragma once
#include "tera/base/rng.h"
#include "tera/tensor/tensor.h"

namespace tera {

// Elements of out become std times draws of the standard normal stream under `key`: element j of row i is draw
// first + i * row_stride + j, rows being everything but the last dim. A slice of a larger tensor, told where it lies,
// gets the bits that the whole one has there. Float, dense.
struct NormalArgs {
  Tensor out;
  RngKey key;
  float std = 1;
  std::int64_t first = 0;
  std::int64_t row_stride = 0;  // 0: rows follow each other without a gap
  void check() const;
};

}  // namespace tera
