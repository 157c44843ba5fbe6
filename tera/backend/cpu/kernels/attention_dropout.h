#pragma once
// The draws of attention's dropout; attention.h says which is whose. In an anonymous namespace: see isa.h.

#include "tera/backend/cpu/kernels/attention.h"
#include "tera/backend/cpu/kernels/philox.h"

namespace tera::cpu {
namespace {

// keep[j] = 0 or 1 / (1 - rate) for the query and `keys` keys from first_key on.
[[maybe_unused]] inline void draw_kept(const AttentionDropout& dropout, std::int64_t head, std::ptrdiff_t query,
                                       std::ptrdiff_t first_key, std::ptrdiff_t keys, float* keep) {
  const float scale = 1.0f / (1.0f - dropout.rate);
  const auto row = static_cast<std::uint64_t>(dropout.query_ids[query]);
  PhiloxWords words;
  std::uint64_t first = 0;  // the counters in `words` are first .. first + philox_width - 1
  for (std::ptrdiff_t j = 0; j < keys; ++j) {
    const auto id = static_cast<std::uint64_t>(dropout.key_ids[first_key + j]);
    const std::uint64_t block = id / 4 + (static_cast<std::uint64_t>(head) << 48);
    if (j == 0 || block - first >= philox_width) {
      philox_blocks(dropout.key, row, block, words);
      first = block;
    }
    const float uniform = static_cast<float>(words.word[id % 4][block - first] >> 8) * 0x1p-24f;
    keep[j] = uniform >= dropout.rate ? scale : 0.0f;
  }
}

}  // namespace
}  // namespace tera::cpu
