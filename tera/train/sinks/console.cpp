#include "tera/train/sinks/console.h"

#include <algorithm>
#include <cmath>

#include "tera/base/progress_text.h"

namespace tera {
namespace {

constexpr auto redraw_every = std::chrono::milliseconds(50);

using Line = ProgressLine;

int digits(std::int64_t n) { return n < 10 ? 1 : 1 + digits(n / 10); }

// 950, 12.3k, 4.56M: three digits, so that a column keeps its width.
void put_rate(Line& line, double per_second) {
  if (!std::isfinite(per_second) || per_second < 0) per_second = 0;
  if (per_second >= 1e6)
    line.put("{:#.3g}M", per_second / 1e6);
  else if (per_second >= 1e3)
    line.put("{:#.3g}k", per_second / 1e3);
  else
    line.put("{:.0f}", per_second);
  line.put(" tokens/s");
}

// Small machines are measured in GFLOP/s.
void put_speed(Line& line, const StepMetrics& m) {
  put_rate(line, m.number("tokens_per_s"));
  const double tflops = m.number("tflops_per_device");
  if (tflops >= 1)
    line.put(" | {:.1f} TFLOP/s", tflops);
  else
    line.put(" | {:.1f} GFLOP/s", 1e3 * tflops);
  if (const auto mfu = m.maybe("mfu")) line.put(" | MFU {:.1f} %", 100 * *mfu);
}

// Those that say how the console shows them.
void put_metrics(Line& line, const StepMetrics& m) {
  for (const Metric& metric : m.values) {
    const auto* value = std::get_if<double>(&metric.value);
    if (!value || metric.console.empty()) continue;
    line.put(" | ");
    line.put(fmt::runtime(metric.console), *value);
  }
}

}  // namespace

double ConsoleSink::eta_seconds(std::int64_t step) const {
  return static_cast<double>(std::max<std::int64_t>(options_.total_steps - step, 0)) * smooth_ms_ / 1e3;
}

void ConsoleSink::step(const StepMetrics& m) {
  // The first steps warm caches up: a plain average until twenty have been seen, then a moving one.
  const auto weight = static_cast<double>(std::min<std::int64_t>(++seen_, 20));
  if (m.is_set("skipped")) ++skipped_;
  smooth_ms_ += (m.number("step_ms") - smooth_ms_) / weight;
  const std::int64_t interval = std::max<std::int64_t>(options_.log_interval, 1);
  if (m.step % interval == 0 || seen_ == 1 || m.step == options_.total_steps) print_line(m);
  draw_bar(m);
}

void ConsoleSink::print_line(const StepMetrics& m) {
  Line line;
  line.put("step {:{}}/{} | loss {:.4f} | ", m.step, digits(options_.total_steps), options_.total_steps,
           m.number("loss"));
  line.put("grad norm {:.3f} | lr {:.2e} | {:.1f} ms | ", m.number("grad_norm"), m.number("lr"), m.number("step_ms"));
  put_speed(line, m);
  put_metrics(line, m);
  if (const auto scale = m.maybe("loss_scale")) line.put(" | loss scale {:g}", *scale);
  if (skipped_ > 0) line.put(" | {} skipped", skipped_);
  skipped_ = 0;
  log_.info("{}", line.text());
}

void ConsoleSink::eval(const EvalMetrics& m) {
  log_.info("eval at step {} | loss {:.4f} | perplexity {:.4g}", m.step, m.eval_loss, std::exp(m.eval_loss));
  for (const SetLoss& set : m.sets)
    log_.info("  {} | loss {:.4f} | perplexity {:.4g}", set.name, set.loss, std::exp(set.loss));
}

void ConsoleSink::draw_bar(const StepMetrics& m) {
  const auto now = std::chrono::steady_clock::now();
  if (!log_.terminal() || (now - drawn_ < redraw_every && m.step != options_.total_steps)) return;
  drawn_ = now;
  Line line;
  const auto total = static_cast<double>(std::max<std::int64_t>(options_.total_steps, 1));
  put_bar(line, static_cast<double>(m.step) / total);
  line.put(" {}/{} | loss \x1b[1m{:.4f}\x1b[0m | ", m.step, options_.total_steps, m.number("loss"));
  put_speed(line, m);
  line.put(" | ETA ");
  put_duration(line, eta_seconds(m.step));
  log_.status(line.text());
}

}  // namespace tera
