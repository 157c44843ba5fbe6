#include "tera/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tera/base/error.h"

namespace tera {
namespace {

double cosine_decay(double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0); }

// From 1 to 0 as ratio goes from 0 to 1.
double wsd_decay(WsdDecayStyle style, double ratio) {
  switch (style) {
    case WsdDecayStyle::exponential: return 2.0 * std::pow(0.5, ratio) - 1.0;
    case WsdDecayStyle::linear: return 1.0 - ratio;
    case WsdDecayStyle::cosine: return cosine_decay(ratio);
    case WsdDecayStyle::minus_sqrt: return 1.0 - std::sqrt(ratio);
  }
  fail("unknown WSD style {}", static_cast<int>(style));
}

double wsd_fraction(const LrSchedule& s, std::int64_t samples) {
  const std::int64_t decay_begin = s.decay_samples - s.wsd_decay_samples;
  if (samples <= decay_begin) return 1.0;
  return wsd_decay(s.wsd_style, static_cast<double>(samples - decay_begin) / static_cast<double>(s.wsd_decay_samples));
}

}  // namespace

void LrSchedule::check() const {
  const auto rate = [](double value) { return std::isfinite(value) && value >= 0; };
  require_user(
      rate(max_lr) && rate(min_lr) && rate(init_lr),
      "learning rates must be numbers from 0 up: optimizer.lr is {}, optimizer.min_lr {}, scheduler.lr_warmup_init {}",
      max_lr, min_lr, init_lr);
  require_user(min_lr <= max_lr && init_lr <= max_lr,
               "optimizer.lr ({}) must be at least optimizer.min_lr ({}) and scheduler.lr_warmup_init ({})", max_lr,
               min_lr, init_lr);
  require_user(
      warmup_samples >= 0 && warmup_samples < decay_samples,
      "scheduler.lr_warmup_iters ({} samples) must be from 0 up and less than scheduler.lr_decay_iters ({} samples)",
      warmup_samples, decay_samples);
  if (style == LrDecayStyle::wsd)
    require_user(wsd_decay_samples > 0 && wsd_decay_samples <= decay_samples,
                 "scheduler.lr_wsd_decay_iters ({} samples) must be from 1 to scheduler.lr_decay_iters ({} samples)",
                 wsd_decay_samples, decay_samples);
}

double learning_rate(const LrSchedule& s, std::int64_t samples) {
  const auto n = static_cast<double>(samples), warmup = static_cast<double>(s.warmup_samples);
  if (s.warmup_samples > 0 && samples <= s.warmup_samples) return s.init_lr + (s.max_lr - s.init_lr) * n / warmup;
  if (s.style == LrDecayStyle::constant) return s.max_lr;
  if (samples > s.decay_samples) return s.min_lr;

  const double ratio = (n - warmup) / (static_cast<double>(s.decay_samples) - warmup);
  double fraction = 1.0;
  switch (s.style) {
    case LrDecayStyle::constant: break;
    case LrDecayStyle::linear: fraction = 1.0 - ratio; break;
    case LrDecayStyle::cosine: fraction = cosine_decay(ratio); break;
    case LrDecayStyle::wsd: fraction = wsd_fraction(s, samples); break;
    case LrDecayStyle::inverse_square_root:
      return std::max(s.min_lr, s.max_lr * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(n, 1.0)));
  }
  return s.min_lr + fraction * (s.max_lr - s.min_lr);
}

}  // namespace tera
