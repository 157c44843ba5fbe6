#include "apps/nearest_name.h"

#include "tera/base/edit_distance.h"

namespace tera {

std::string nearest_name(std::string_view word, std::span<const std::string> names) {
  std::string nearest;
  std::size_t smallest = word.size() / 2 + 1;  // half the letters wrong is another word
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(word, name);
    if (distance >= smallest) continue;
    smallest = distance;
    nearest = name;
  }
  return nearest;
}

}  // namespace tera
