#include "tera/train/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace tera {
namespace {

constexpr auto redraw_every = std::chrono::milliseconds(50);
constexpr int bar_cells = 24;

// Text of bounded length, put together on the stack; what does not fit is cut.
template <std::size_t capacity>
class TextBuffer {
 public:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    const auto result = fmt::format_to_n(data_.data() + size_, capacity - size_, format, std::forward<Args>(args)...);
    size_ = std::min(size_ + result.size, capacity);
  }
  std::string_view text() const { return {data_.data(), size_}; }

 private:
  std::array<char, capacity> data_;
  std::size_t size_ = 0;
};
using Line = TextBuffer<900>;

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

void put_duration(Line& line, double seconds) {
  const auto s = static_cast<std::int64_t>(std::clamp(std::ceil(seconds), 0.0, 1e9));
  if (s >= 86400) line.put("{}d ", s / 86400);
  if (s >= 3600) line.put("{:02}:", s / 3600 % 24);
  line.put("{:02}:{:02}", s / 60 % 60, s % 60);
}

// Small machines are measured in GFLOP/s.
void put_speed(Line& line, const StepMetrics& m) {
  put_rate(line, m.tokens_per_s);
  if (m.tflops_per_device >= 1)
    line.put(" | {:.1f} TFLOP/s", m.tflops_per_device);
  else
    line.put(" | {:.1f} GFLOP/s", 1e3 * m.tflops_per_device);
  if (m.mfu) line.put(" | MFU {:.1f} %", 100 * *m.mfu);
}

// Eighths of a cell make the bar move smoothly.
void put_bar(Line& line, double share) {
  constexpr std::array<std::string_view, 8> parts{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int>(std::clamp(share, 0.0, 1.0) * bar_cells * 8);
  const auto& part = parts[static_cast<std::size_t>(eighths % 8)];
  line.put("\x1b[36m");
  for (int i = 0; i < eighths / 8; ++i) line.put("█");
  line.put("{}\x1b[90m", part);
  for (int i = eighths / 8 + (part.empty() ? 0 : 1); i < bar_cells; ++i) line.put("·");
  line.put("\x1b[0m");
}

}  // namespace

double ConsoleSink::eta_seconds(std::int64_t step) const {
  return static_cast<double>(std::max<std::int64_t>(options_.total_steps - step, 0)) * smooth_ms_ / 1e3;
}

void ConsoleSink::step(const StepMetrics& m) {
  // The first steps warm caches up: a plain average until twenty have been seen, then a moving one.
  const auto weight = static_cast<double>(std::min<std::int64_t>(++seen_, 20));
  smooth_ms_ += (m.step_ms - smooth_ms_) / weight;
  const std::int64_t interval = std::max<std::int64_t>(options_.log_interval, 1);
  if (m.step % interval == 0 || seen_ == 1 || m.step == options_.total_steps) print_line(m);
  draw_bar(m);
}

void ConsoleSink::print_line(const StepMetrics& m) {
  Line line;
  line.put("step {:{}}/{} | loss {:.4f} | ", m.step, digits(options_.total_steps), options_.total_steps, m.loss);
  line.put("grad norm {:.3f} | lr {:.2e} | {:.1f} ms | ", m.grad_norm, m.lr, m.step_ms);
  put_speed(line, m);
  if (m.loss_scale) line.put(" | loss scale {:g}", *m.loss_scale);
  if (m.skipped) line.put(" | skipped");
  log_.info("{}", line.text());
}

void ConsoleSink::eval(const EvalMetrics& m) {
  log_.info("eval at step {} | loss {:.4f} | perplexity {:.4g}", m.step, m.eval_loss, std::exp(m.eval_loss));
}

void ConsoleSink::draw_bar(const StepMetrics& m) {
  const auto now = std::chrono::steady_clock::now();
  if (!log_.terminal() || (now - drawn_ < redraw_every && m.step != options_.total_steps)) return;
  drawn_ = now;
  Line line;
  const auto total = static_cast<double>(std::max<std::int64_t>(options_.total_steps, 1));
  put_bar(line, static_cast<double>(m.step) / total);
  line.put(" {}/{} | loss \x1b[1m{:.4f}\x1b[0m | ", m.step, options_.total_steps, m.loss);
  put_speed(line, m);
  line.put(" | ETA ");
  put_duration(line, eta_seconds(m.step));
  log_.status(line.text());
}

}  // namespace tera
