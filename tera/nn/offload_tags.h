#pragma once
#include <string_view>
#include <vector>

#include "tera/config/setup.h"

namespace tera {

// Activation offloading: which tensors are on the host between F and B (or W), by the tags under which blocks take
// them.
struct OffloadTags {
  bool x = false;  // border.x: what the engine keeps between blocks
  std::vector<std::string_view> f_to_b, f_to_w;
  bool any() const { return x || !f_to_b.empty() || !f_to_w.empty(); }
};

OffloadTags offload_tags(const OffloadShape& shape);

}  // namespace tera
