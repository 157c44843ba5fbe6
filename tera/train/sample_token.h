#pragma once
// Choosing the next token from logits.

#include <cstdint>
#include <span>

#include "tera/base/rng.h"

namespace tera {

struct SamplingOptions {
  float temperature = 1;   // 0: the most likely token
  std::int64_t top_k = 0;  // only the k most likely; 0: all
  float top_p = 1;         // only the fewest most likely whose probabilities reach p
  void check() const;      // UserError
};

struct TokenChance {
  float weight;  // logit, later exp of it
  std::int32_t id;
};

// A pure function of its arguments: `position` is the place of the new token in its sequence. Equal logits rank by id,
// lower first. `scratch` has room for every logit (none is needed when greedy); nothing is allocated.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, RngKey key,
                          std::uint64_t position, std::span<TokenChance> scratch);

}  // namespace tera
