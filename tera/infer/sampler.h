#pragma once
// Sampling of the next token from logits: greedy, temperature, top-k, top-p.

#include <cstdint>
#include <span>

#include "tera/base/rng.h"

namespace tera {

struct SamplingOptions {
  float temperature = 1;   // 0: the most likely token
  std::int64_t top_k = 0;  // only the k most likely; 0: all
  float top_p = 1;         // nucleus: only the fewest most likely whose probabilities reach p
  void check() const;      // UserError
};

struct TokenWeight {
  float weight;  // the logit, then exp of it
  std::int32_t id;
};

// A pure function of its arguments: `position` is the index of the new token in its sequence. Equal logits rank by id,
// lower first. `scratch` has the size of `logits` (greedy needs none); nothing is allocated.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, RngKey key,
                          std::uint64_t position, std::span<TokenWeight> scratch);

}  // namespace tera
