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

// A copy between a dense tensor of the device and pinned host memory (Device::allocate_host), after both tickets.
struct HostCopyArgs {
  Tensor tensor;
  std::span<std::byte> host;
  Ticket after, and_after;
  void check() const;
};

// Begin and end of a copy: tickets of a copy stream or, where the device has none, of the ops' queue.
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
