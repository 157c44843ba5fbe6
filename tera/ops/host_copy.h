#pragma once
#include <cstddef>
#include <span>

#include "tera/ops/ticket.h"
#include "tera/tensor/tensor.h"

namespace tera {

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

}  // namespace tera
