#pragma once
#include <cstdint>

namespace tera {

// A point in a queue of work: behind everything that was asked for before it.
struct Ticket {
  std::uint64_t id = 0;
};

}  // namespace tera
