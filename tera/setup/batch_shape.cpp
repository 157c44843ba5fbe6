#include <algorithm>

#include "tera/config/setup.h"

namespace tera {

// Megatron-LM's arithmetic, in doubles: the last bit of the quotient can decide.
std::int64_t BatchShape::global_batch_at(std::int64_t consumed) const {
  if (rampup.start == 0 || consumed > rampup.samples) return global_batch;
  const auto increments = static_cast<double>((global_batch - rampup.start) / rampup.increment);
  const double samples_per_increment = static_cast<double>(rampup.samples) / increments;
  const auto passed = static_cast<std::int64_t>(static_cast<double>(consumed) / samples_per_increment);
  return std::min(rampup.start + passed * rampup.increment, global_batch);
}

// Dynamic CP: a step may have any number of microbatches up to the limit; at most max_numbers of them are listed.
std::vector<std::int64_t> BatchShape::smaller_steps() const {
  constexpr std::int64_t max_numbers = 64;
  std::vector<std::int64_t> steps;
  const std::int64_t micro_times_dp = global_batch / num_microbatches;
  for (std::int64_t size = rampup.start; size > 0 && size < global_batch; size += rampup.increment)
    steps.push_back(size / micro_times_dp);
  if (max_dynamic_microbatches == 0) return steps;
  const std::int64_t stride = (max_dynamic_microbatches + max_numbers - 1) / max_numbers;
  for (std::int64_t number = stride; number < max_dynamic_microbatches; number += stride) steps.push_back(number);
  if (num_microbatches < max_dynamic_microbatches) steps.push_back(num_microbatches);
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

}  // namespace tera
