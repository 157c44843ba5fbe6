#pragma once
#include <span>

#include "tera/ops/op_list.h"
#include "tera/ops/reduce.h"
#include "tera/tensor/tensor.h"

namespace tera {

// The local reduction of collectives: out = sources[0] + sources[1] + ..., elementwise and in this order; mean divides
// the sum by the number of sources, and max is NaN where any of them is. 16-bit floats are combined in fp32 and rounded
// once, at the end; integers wrap and have no mean. All tensors dense, of one shape and dtype (any but u8); out may be
// one of the sources.
struct CombineArgs {
  static constexpr std::size_t max_sources = 256;
  std::span<const Tensor> sources;
  Tensor out;
  Reduce how = Reduce::sum;
  void check() const;

  static constexpr OpKind op_kind = OpKind::transfer;
};

}  // namespace tera
