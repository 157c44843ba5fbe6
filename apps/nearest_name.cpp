#include "apps/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace tera {
namespace {

// Insertions, deletions and replacements; one row of the usual table at a time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(std::string_view word, std::span<const std::string> names) {
  std::string nearest;
  std::size_t least = word.size() / 2 + 1;  // half the letters wrong is another word
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(word, name);
    if (distance >= least) continue;
    least = distance;
    nearest = name;
  }
  return nearest;
}

}  // namespace tera
