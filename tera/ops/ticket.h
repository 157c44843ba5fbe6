#pragma once
#include <cstdint>

namespace tera {

// An ordered queue of work, as a CUDA stream: a queue of ops, or the exchanges of a group of ranks.
struct Timeline {
  virtual ~Timeline() = default;
  virtual void finish(std::uint64_t id) = 0;  // the host waits until the point with this id is passed
};

// A point on a timeline, as a CUDA event: after all work that was queued before it. One without a timeline has passed.
struct Ticket {
  std::uint64_t id = 0;
  Timeline* timeline = nullptr;
};

}  // namespace tera
