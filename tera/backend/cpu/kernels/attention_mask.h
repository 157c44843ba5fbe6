#pragma once
// Causal and sliding-window masks: the range of keys that a query sees. Both ends of that range grow with the query, so
// blocks of queries and blocks of keys have ranges too, and tiles outside them are skipped. In an anonymous namespace:
// see isa.h.

#include "tera/backend/cpu/kernels/attention.h"

namespace tera::cpu {
namespace {

struct AttentionRange {
  std::ptrdiff_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

[[maybe_unused]] inline AttentionRange intersect(AttentionRange a, AttentionRange b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

// The first of `count` rows whose position is at least this one.
[[maybe_unused]] inline std::ptrdiff_t first_at(const std::int32_t* positions, std::ptrdiff_t count,
                                                std::ptrdiff_t position) {
  std::ptrdiff_t low = 0, high = count;
  while (low < high) {
    const std::ptrdiff_t middle = (low + high) / 2;
    if (positions[middle] < position)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Keys that some of the queries [begin, end) see, begin < end; where positions have gaps and there is a window, also
// some between. Causal: the last query sees the last key, or each those up to its position.
[[maybe_unused]] inline AttentionRange visible_keys(const AttentionMask& mask, std::ptrdiff_t begin,
                                                    std::ptrdiff_t end) {
  if (!mask.causal) return {0, mask.keys};
  if (mask.query_positions) {
    const std::ptrdiff_t first = mask.query_positions[begin] + 1 - mask.window;
    return {mask.window > 0 ? first_at(mask.key_positions, mask.keys, first) : 0,
            first_at(mask.key_positions, mask.keys, mask.query_positions[end - 1] + std::ptrdiff_t{1})};
  }
  const std::ptrdiff_t shift = mask.keys - mask.queries;
  const std::ptrdiff_t first = mask.window > 0 ? begin + 1 + shift - mask.window : 0;
  return {first > 0 ? first : 0, end + shift};
}

// Queries that see some of the keys [begin, end), begin < end; where positions have gaps and there is a window, also
// some between.
[[maybe_unused]] inline AttentionRange seeing_queries(const AttentionMask& mask, std::ptrdiff_t begin,
                                                      std::ptrdiff_t end) {
  if (!mask.causal) return {0, mask.queries};
  if (mask.query_positions) {
    const std::ptrdiff_t window_end = mask.key_positions[end - 1] + mask.window;
    return {first_at(mask.query_positions, mask.queries, mask.key_positions[begin]),
            mask.window > 0 ? first_at(mask.query_positions, mask.queries, window_end) : mask.queries};
  }
  const std::ptrdiff_t shift = mask.keys - mask.queries;
  const AttentionRange all{0, mask.queries};
  return intersect(all, {begin - shift, mask.window > 0 ? end + mask.window - 1 - shift : mask.queries});
}

[[maybe_unused]] inline bool visible(const AttentionMask& mask, AttentionRange queries, AttentionRange keys) {
  return !queries.empty() && !keys.empty() && !intersect(visible_keys(mask, queries.begin, queries.end), keys).empty();
}

}  // namespace
}  // namespace tera::cpu
