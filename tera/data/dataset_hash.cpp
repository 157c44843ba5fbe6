#include "tera/data/dataset_hash.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "tera/base/hash.h"

namespace tera {
namespace {

template <class T>
std::uint64_t hash_values(const std::vector<T>& values) {
  return hash_text({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

}  // namespace

std::uint64_t hash_some_samples(const Dataset& data, std::int64_t ids) {
  constexpr std::int64_t max_samples = 16, furthest = std::int64_t{1} << 31;  // mock data has no end
  const std::int64_t samples = data.samples(), looked_at = std::min(samples, max_samples);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(ids));
  std::vector<std::uint8_t> marks(data.has_marks() ? tokens.size() : 0);
  std::vector<std::uint64_t> hashes{static_cast<std::uint64_t>(samples)};
  for (std::int64_t i = 0; i < looked_at; ++i) {
    const std::int64_t index = std::min(samples, furthest) / looked_at * i;
    data.sample(index, tokens);
    hashes.push_back(hash_values(tokens));
    if (marks.empty()) continue;
    data.marks(index, marks);
    hashes.push_back(hash_values(marks));
  }
  return hash_values(hashes);
}

}  // namespace tera
