#pragma once
// The learning-rate schedule.

#include <cstdint>
#include <span>

#include "tera/base/kinds.h"

namespace tera {

struct Field;

struct SchedulerConfig {
  LrDecayStyle lr_decay_style = LrDecayStyle::linear;
  std::int64_t lr_warmup_iters = 0;
  std::int64_t lr_warmup_samples = 0;
  double lr_warmup_init = 0;
  std::int64_t lr_decay_iters = 0;
  std::int64_t lr_decay_samples = 0;
  std::int64_t lr_wsd_decay_iters = 0;
  std::int64_t lr_wsd_decay_samples = 0;
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::exponential;

  static std::span<const Field> fields();
  bool operator==(const SchedulerConfig&) const = default;
};

}  // namespace tera
