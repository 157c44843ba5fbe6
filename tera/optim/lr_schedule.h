#pragma once
// Learning rate as a function of the samples consumed: Megatron-LM's five styles with linear warm-up.

#include <cstdint>

#include "tera/base/kinds.h"

namespace tera {

struct LrSchedule {
  LrDecayStyle style = LrDecayStyle::linear;
  WsdDecayStyle wsd_style = WsdDecayStyle::exponential;
  double init_lr = 0;  // at sample 0, when there is a warm-up
  double max_lr = 0, min_lr = 0;
  std::int64_t warmup_samples = 0;
  std::int64_t decay_samples = 0;      // where min_lr is reached, warm-up included
  std::int64_t wsd_decay_samples = 0;  // length of WSD's decay phase

  void check() const;  // UserError naming the scheduler key that is wrong
};

// The rate of the step that starts after `samples` samples: the first step of a run has 0, so with a warm-up it runs at
// init_lr, as in Megatron-LM. Skipped steps do not count.
double learning_rate(const LrSchedule& schedule, std::int64_t samples);

}  // namespace tera
