#pragma once
#include "tera/base/rng.h"
#include "tera/tensor/tensor.h"

namespace tera {

// Element i of out becomes std times draw i of the standard normal stream under `key`. Float, dense.
struct NormalArgs {
  Tensor out;
  RngKey key;
  float std = 1;
  void check() const;
};

}  // namespace tera
