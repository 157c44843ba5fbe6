#pragma once
// The random draws of attention dropout; attention.h defines which element has which. In an anonymous namespace: see
// isa.h.

#include "tera/backend/cpu/kernels/attention.h"
#include "tera/backend/cpu/kernels/philox.h"

namespace tera::cpu {
namespace {

// keep[j] = 0 or 1 / (1 - rate) for the query and `keys` keys from first_key on. Ids of neighbours are mostly
// consecutive, so the draws of philox_width blocks are made at once and looked up.
[[maybe_unused]] inline void draw_kept(const AttentionDropout& dropout, std::int64_t head, std::ptrdiff_t query,
                                       std::ptrdiff_t first_key, std::ptrdiff_t keys, float* keep) {
  const auto row = static_cast<std::uint64_t>(dropout.query_ids[query]);
  const auto counters = static_cast<std::uint64_t>(head) << 48;
  const std::int64_t* ids = dropout.key_ids + first_key;
  const float scale = 1.0f / (1.0f - dropout.rate);
  PhiloxWords words;
  float kept[4][philox_width];
  for (std::ptrdiff_t j = 0; j < keys;) {
    const auto block = static_cast<std::uint64_t>(ids[j]) / 4;
    philox_blocks(dropout.key, row, block + counters, words);
    for (int w = 0; w < 4; ++w)
      for (int i = 0; i < philox_width; ++i) {
        const float uniform = static_cast<float>(static_cast<std::int32_t>(words.word[w][i] >> 8)) * 0x1p-24f;
        kept[w][i] = uniform >= dropout.rate ? scale : 0.0f;
      }
    for (; j < keys; ++j) {
      const std::uint64_t at = static_cast<std::uint64_t>(ids[j]) - 4 * block;
      if (at >= 4 * philox_width) break;
      keep[j] = kept[at % 4][at / 4];
    }
  }
}

}  // namespace
}  // namespace tera::cpu
