#pragma once
#include <cstdint>

namespace tera {

// What callers may want to know of a backend, beyond calling it.
struct OpsTraits {
  bool asynchronous = false;              // calls return before the work is done
  std::int64_t logits_chunk = 1LL << 24;  // elements of the logits that exist at a time
};

}  // namespace tera
