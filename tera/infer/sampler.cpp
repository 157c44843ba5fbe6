#include "tera/infer/sampler.h"

#include <algorithm>
#include <cmath>

#include "tera/base/error.h"

namespace tera {
namespace {

bool likelier(const TokenWeight& a, const TokenWeight& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

std::int32_t most_likely(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    require(!std::isnan(logits[i]), "the logit of token {} is not a number", i);
    if (logits[i] > logits[best]) best = i;
  }
  require(std::isfinite(logits[best]), "the largest logit is {}: no token can be chosen", logits[best]);
  return static_cast<std::int32_t>(best);
}

// Logits become weights proportional to probabilities, the largest being 1. Returns their sum.
double weigh(std::span<TokenWeight> candidates, double largest, double temperature) {
  double sum = 0;
  for (TokenWeight& candidate : candidates) {
    candidate.weight = static_cast<float>(std::exp((static_cast<double>(candidate.weight) - largest) / temperature));
    sum += static_cast<double>(candidate.weight);
  }
  return sum;
}

// Top-p: the fewest from the front whose weights reach the fraction p of the sum; `sum` becomes that of their weights.
std::span<TokenWeight> nucleus(std::span<TokenWeight> sorted, double p, double& sum) {
  double reached = 0;
  std::size_t kept = 0;
  while (kept < sorted.size() && (kept == 0 || reached < p * sum))
    reached += static_cast<double>(sorted[kept++].weight);
  sum = reached;
  return sorted.first(kept);
}

double uniform_double(RngKey key, std::uint64_t position) {
  const auto bits = philox(key, position, 0);
  return static_cast<double>((std::uint64_t{bits[0]} << 32 | bits[1]) >> 11) * 0x1p-53;
}

}  // namespace

void SamplingOptions::check() const {
  require_user(std::isfinite(temperature) && temperature >= 0, "--temperature is {}; it must be 0 (greedy) or more",
               temperature);
  require_user(top_k >= 0, "--top-k is {}; it must be 0 (all tokens) or more", top_k);
  require_user(top_p > 0 && top_p <= 1, "--top-p is {}; it must be above 0 and at most 1 (all tokens)", top_p);
}

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, RngKey key,
                          std::uint64_t position, std::span<TokenWeight> scratch) {
  require(!logits.empty(), "there is no token to choose from");
  const std::int32_t best = most_likely(logits);
  if (options.temperature == 0 || options.top_k == 1) return best;
  require(scratch.size() >= logits.size(), "sampling {} tokens needs as much scratch, {} was given", logits.size(),
          scratch.size());

  std::span<TokenWeight> candidates = scratch.first(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) candidates[i] = {logits[i], static_cast<std::int32_t>(i)};
  if (options.top_k > 0 && options.top_k < std::ssize(candidates)) {
    std::nth_element(candidates.begin(), candidates.begin() + options.top_k, candidates.end(), likelier);
    candidates = candidates.first(static_cast<std::size_t>(options.top_k));
  }
  // A fixed order, so that the draw below does not depend on how the library partitions.
  if (options.top_p < 1 || candidates.size() < logits.size()) std::sort(candidates.begin(), candidates.end(), likelier);
  double sum = weigh(candidates, static_cast<double>(logits[static_cast<std::size_t>(best)]),
                     static_cast<double>(options.temperature));
  if (options.top_p < 1) candidates = nucleus(candidates, static_cast<double>(options.top_p), sum);

  double left = uniform_double(key, position) * sum;
  for (const TokenWeight& candidate : candidates) {
    left -= static_cast<double>(candidate.weight);
    if (left < 0) return candidate.id;
  }
  return best;  // rounding left a remainder after the last candidate
}

}  // namespace tera
