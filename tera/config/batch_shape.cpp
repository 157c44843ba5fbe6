#include <algorithm>

#include "tera/config/setup.h"

namespace tera {

// Megatron-LM's arithmetic, in doubles: what decides is the last bit of a quotient.
std::int64_t BatchShape::global_batch_at(std::int64_t consumed) const {
  if (rampup.start == 0 || consumed > rampup.samples) return global_batch;
  const auto increments = static_cast<double>((global_batch - rampup.start) / rampup.increment);
  const double samples_per_increment = static_cast<double>(rampup.samples) / increments;
  const auto passed = static_cast<std::int64_t>(static_cast<double>(consumed) / samples_per_increment);
  return std::min(rampup.start + passed * rampup.increment, global_batch);
}

// Where documents are dealt, a step may have any number of microbatches; of many, some numbers are enough.
std::vector<std::int64_t> BatchShape::smaller_steps() const {
  constexpr std::int64_t most_numbers = 64;
  std::vector<std::int64_t> steps;
  const std::int64_t together = global_batch / num_microbatches;
  for (std::int64_t size = rampup.start; size > 0 && size < global_batch; size += rampup.increment)
    steps.push_back(size / together);
  if (most_dealt == 0) return steps;
  const std::int64_t apart = (most_dealt + most_numbers - 1) / most_numbers;
  for (std::int64_t number = apart; number < most_dealt; number += apart) steps.push_back(number);
  if (num_microbatches < most_dealt) steps.push_back(num_microbatches);
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

}  // namespace tera
