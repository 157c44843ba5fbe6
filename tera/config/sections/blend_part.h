#pragma once
// One dataset of a blend, as written: {prefix: corpus/web, weight: 0.7}.

#include <string>

namespace tera {

struct BlendPart {
  std::string prefix;
  double weight = 0;
  bool operator==(const BlendPart&) const = default;
};

}  // namespace tera
