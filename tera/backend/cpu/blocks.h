#pragma once
// Splits an op into tasks by the size of the work alone, never by the number of threads, so that sums over a block are
// the same on any machine.

#include <algorithm>
#include <cstdint>

#include "tera/backend/cpu/thread_pool.h"

namespace tera::cpu {

struct Blocks {
  std::int64_t items = 0, size = 1;
  std::int64_t count() const { return (items + size - 1) / size; }
  std::int64_t begin(std::int64_t block) const { return block * size; }
  std::int64_t end(std::int64_t block) const { return std::min(items, (block + 1) * size); }
};

// Large enough to hide what starting a task costs (about a microsecond), small enough to balance.
inline constexpr std::int64_t task_elements = 16384;

inline Blocks element_blocks(std::int64_t elements) { return {elements, task_elements}; }
inline Blocks row_blocks(std::int64_t rows, std::int64_t width) {
  return {rows, std::max<std::int64_t>(1, task_elements / std::max<std::int64_t>(1, width))};
}

// Blocks for a sum over rows: each block keeps a partial sum in the workspace, so there are few blocks of many rows.
inline Blocks sum_blocks(std::int64_t rows) {
  constexpr std::int64_t max_blocks = 64, fewest_rows = 32;
  return {rows, std::max(fewest_rows, (rows + max_blocks - 1) / max_blocks)};
}

// Calls body(begin, end) for every block.
template <class Body>
void run_blocks(ThreadPool& pool, Blocks blocks, const Body& body) {
  pool.parallel_for(blocks.count(), [&](std::int64_t block, int) { body(blocks.begin(block), blocks.end(block)); });
}

}  // namespace tera::cpu
