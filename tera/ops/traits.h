#pragma once
#include <cstdint>

namespace tera {

// Properties of a backend that callers depend on.
struct OpsTraits {
  bool asynchronous = false;              // calls return before the work is done
  std::int64_t logits_chunk = 1LL << 24;  // elements of the logits that are in memory at a time
};

}  // namespace tera
