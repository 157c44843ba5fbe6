#pragma once
#include <span>

#include "tera/ops/ticket.h"
#include "tera/tensor/tensor.h"

namespace tera {

// dst = src, converted between float dtypes when they differ. Same shape; all dims but the last may be strided.
struct CopyArgs {
  Tensor src, dst;
  void check() const;
};

// Between a dense tensor of the device and host memory of Device::allocate_host, when both points are passed.
struct HostCopyArgs {
  Tensor tensor;
  std::span<std::byte> host;
  Ticket after, and_after;
  void check() const;
};

// Where a copy begins and ends, on a timeline of its own or, where there is none, on that of the ops.
struct CopyPoints {
  Ticket begin, end;
};

// Every element of out becomes value. Dense, any dtype.
struct FillArgs {
  Tensor out;
  double value = 0;
  void check() const;
};

}  // namespace tera
