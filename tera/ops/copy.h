#pragma once
#include "tera/tensor/tensor.h"

namespace tera {

// dst = src, converted between float dtypes when they differ. Same shape; all dims but the last may be strided.
struct CopyArgs {
  Tensor src, dst;
  void check() const;
};

// Every element of out becomes value. Dense, any dtype.
struct FillArgs {
  Tensor out;
  double value = 0;
  void check() const;
};

}  // namespace tera
