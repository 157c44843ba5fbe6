#pragma once
// The kernels of flash attention: what one task computes. attention.cpp one folder up cuts the work into tasks and
// gives each thread its scratch.

#include <cstddef>
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

enum class AttentionStorage : unsigned char { f32, bf16, f16 };
inline constexpr int attention_storages = 3;

// Rows of one head of one sequence: [rows, D], `stride` elements apart.
struct AttentionRows {
  void* data = nullptr;
  std::ptrdiff_t stride = 0;
};

// Which keys of a sequence its queries see; see attention_mask.h.
struct AttentionMask {
  std::ptrdiff_t queries = 0, keys = 0;  // lengths of the sequence
  bool causal = true;
  std::ptrdiff_t window = 0;  // sliding window; 0: none
  const std::int32_t *query_positions = nullptr,
                     *key_positions = nullptr;  // [queries], [keys]; none: the last query and the last key align
};

// Each (query, key, head) has a draw of its own: word (key id mod 4) of the Philox block at counter low = query id,
// high = key id / 4 + head * 2^48. So draws do not depend on tiles or threads, and are distinct while there are fewer
// than 2^50 rows and 2^16 heads. A probability is kept where uniform(draw) >= rate, and then scaled by 1 / (1 - rate).
struct AttentionDropout {
  float rate = 0;
  std::uint64_t key = 0;
  const std::int64_t* query_ids = nullptr;  // [queries]
  const std::int64_t* key_ids = nullptr;
};

// What all tasks of one sequence and kv head have in common.
struct AttentionTask {
  AttentionMask mask;
  AttentionDropout dropout;
  std::ptrdiff_t head_size = 0;
  std::ptrdiff_t value_size = 0;  // channels of v and out that are not padding
  float scale = 0;
  float* scratch = nullptr;
};

// Queries [begin, end) of one head; at most attention_task_rows of them.
struct AttentionForward : AttentionTask {
  AttentionRows q, k, v, out;  // from the sequence's first row on
  float* lse = nullptr;        // from the sequence's first row on
  std::int64_t head = 0;
  std::ptrdiff_t begin = 0, end = 0;
};

// The target of a gradient to which several tasks add, one after the other: the first overwrites the sum, the last
// converts it to `out`. For f32 storage the sum is `out` itself.
struct AttentionGradient {
  AttentionRows out;
  float* sum = nullptr;
  std::ptrdiff_t sum_stride = 0;
  bool first = true, last = true;
};

// Gradients of queries [q_begin, q_end) against keys [k_begin, k_end), at most attention_task_rows of each, for all
// query heads of one kv head. Rows and gradients begin at the sequence's first row and the group's first head; the
// heads of the group are head_size apart, and lse_step in lse.
struct AttentionBackward : AttentionTask {
  AttentionRows q, k, v, out, dout;
  const float* lse = nullptr;
  std::ptrdiff_t lse_step = 0;
  AttentionGradient dq, dk, dv;
  std::int64_t head = 0;   // the first of the group
  std::int64_t heads = 1;  // in the group
  std::ptrdiff_t q_begin = 0, q_end = 0, k_begin = 0, k_end = 0;
};

// Merges the outputs of attention to two sets of keys (as in ring attention) for rows of one head: the second into the
// first.
struct AttentionMerge {
  AttentionRows part;
  const float* part_lse = nullptr;
  float* out = nullptr;
  std::ptrdiff_t out_stride = 0;
  float* lse = nullptr;
  std::ptrdiff_t head_size = 0, begin = 0, end = 0;
};

struct AttentionKernels {
  void (*forward[attention_storages])(const AttentionForward&);
  void (*merge[attention_storages])(const AttentionMerge&);  // by the storage of the part
};
struct AttentionBackKernels {
  void (*backward[attention_storages])(const AttentionBackward&);
};

template <Isa isa>
const AttentionKernels& attention_kernels();
template <Isa isa>
const AttentionBackKernels& attention_back_kernels();

// Sizes that all instruction sets share, so that plans do not depend on the machine.
inline constexpr std::ptrdiff_t attention_block = 64;  // queries, and keys, of one block of scores

// Rows of a task: enough to amortise packing its operands, few enough that they stay in the L2 cache.
constexpr std::ptrdiff_t attention_task_rows(std::ptrdiff_t head_size) { return head_size <= 64 ? 256 : 128; }

constexpr std::ptrdiff_t attention_padded(std::ptrdiff_t head_size) { return (head_size + 15) / 16 * 16; }

// Floats of scratch per thread.
constexpr std::ptrdiff_t attention_forward_scratch(std::ptrdiff_t head_size) {
  const std::ptrdiff_t rows = attention_task_rows(head_size), width = attention_padded(head_size);
  // q, out; a block of k and v; a block of scores; per row: maximum, and a vector of sums
  return 2 * rows * width + 2 * attention_block * width + attention_block * attention_block + rows + rows * 16;
}
constexpr std::ptrdiff_t attention_backward_scratch(std::ptrdiff_t head_size) {
  const std::ptrdiff_t rows = attention_task_rows(head_size), width = attention_padded(head_size);
  // q, dout, dq, k both ways, v, dk, dv; blocks of probabilities and of their gradients; lse and delta
  return 8 * rows * width + 2 * attention_block * attention_block + 2 * rows;
}

}  // namespace tera::cpu
