#pragma once
#include <cstdint>

namespace tera {

// Whatever does work in an order of its own: a queue of ops, or the exchanges of a group of ranks.
struct Timeline {
  virtual ~Timeline() = default;
  virtual void finish(std::uint64_t id) = 0;  // the host waits until the point with this id is passed
};

// A point on a timeline: behind everything that was asked for before it. One without a timeline was passed long ago.
struct Ticket {
  std::uint64_t id = 0;
  Timeline* timeline = nullptr;
};

}  // namespace tera
