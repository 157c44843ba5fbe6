#include "tera/train/sinks/loss_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/train/sinks/plot_scale.h"

namespace tera {
namespace {

using nlohmann::json;

constexpr std::size_t max_metrics_bytes = std::size_t{1} << 32;

// A number, or one of the strings for values that JSON does not have.
bool read_number(const json& value, double& out) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (value.is_number())
    out = value.get<double>();
  else if (value == "nan")
    out = std::numeric_limits<double>::quiet_NaN();
  else if (value == "inf" || value == "-inf")
    out = value == "inf" ? infinity : -infinity;
  else
    return false;
  return true;
}

// A run that was resumed may have written a step twice: the last one counts.
using PointsByStep = std::map<std::int64_t, double>;

bool read_line(std::string_view line, PointsByStep& train, PointsByStep& eval) {
  const json object = json::parse(line, nullptr, false);
  if (!object.is_object()) return false;
  const auto step = object.find("step"), loss = object.find("loss"), eval_loss = object.find("eval_loss");
  if (step == object.end() || !step->is_number_integer()) return false;
  double value = 0;
  if (loss != object.end() && read_number(*loss, value)) return train[step->get<std::int64_t>()] = value, true;
  if (eval_loss != object.end() && read_number(*eval_loss, value)) return eval[step->get<std::int64_t>()] = value, true;
  return false;
}

std::vector<LossPoint> to_points(const PointsByStep& by_step) {
  std::vector<LossPoint> points;
  for (const auto& [step, loss] : by_step) points.push_back({step, loss});
  return points;
}

// The mean of up to `reach` points on either side, as many on the right as there are on the left.
std::vector<LossPoint> box_average(const std::vector<LossPoint>& points, std::size_t reach) {
  std::vector<double> sums{0};  // prefix sums: [i] adds up the first i points
  for (const LossPoint& point : points) sums.push_back(sums.back() + point.loss);
  std::vector<LossPoint> out;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::size_t side = std::min(reach, i), end = std::min(i + side + 1, points.size());
    out.push_back({points[i].step, (sums[end] - sums[i - side]) / static_cast<double>(end - (i - side))});
  }
  return out;
}

}  // namespace

LossCurves read_loss_curves(const std::filesystem::path& metrics_file) {
  const std::string text = read_whole_file(metrics_file, max_metrics_bytes);
  PointsByStep train, eval;
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    require_user(read_line(line, train, eval), "{} line {} is no metrics line: it needs a step and a loss or eval_loss",
                 metrics_file.string(), number);
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
  return {"", to_points(train), to_points(eval)};
}

std::string Ticks::label(int i) const {
  const double value = at(i);
  if (decimals == 0 && step >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (decimals == 0 && step >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:.{}f}", value == 0 ? 0.0 : value, decimals);
}

Ticks round_ticks(double low, double high, int wanted, bool integers) {
  const double rough = std::max((high - low) / wanted, 1e-300);
  double power = std::pow(10.0, std::floor(std::log10(rough)));
  if (integers) power = std::max(power, 1.0);
  double step = 10 * power;
  int extra = -1;  // decimals beyond those of the power
  for (const double digit : {5.0, 2.5, 2.0, 1.0}) {
    if (digit * power < rough * (1 - 1e-9) || (integers && digit == 2.5 && power == 1.0)) continue;
    step = digit * power;
    extra = digit == 2.5 ? 1 : 0;
  }
  Ticks ticks;
  ticks.step = step;
  ticks.decimals = std::max(0, extra - static_cast<int>(std::floor(std::log10(power) + 0.5)));
  const double slack = 1e-9 * step;
  ticks.first = std::ceil((low - slack) / step) * step;
  ticks.count = 1 + static_cast<int>(std::floor((high + slack - ticks.first) / step));
  return ticks;
}

LossCurves finite_points(const LossCurves& curves) {
  LossCurves out{curves.title, {}, {}};
  const auto finite = [](const LossPoint& point) { return std::isfinite(point.loss); };
  std::ranges::copy_if(curves.train, std::back_inserter(out.train), finite);
  std::ranges::copy_if(curves.eval, std::back_inserter(out.eval), finite);
  require_user(!out.train.empty() || !out.eval.empty(), "there is no loss to draw{}{}",
               curves.title.empty() ? "" : ": ", curves.title);
  return out;
}

PlotRange range_of(const LossCurves& curves) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  PlotRange range{infinity, -infinity, infinity, -infinity};
  for (const auto* points : {&curves.train, &curves.eval})
    for (const LossPoint& point : *points) {
      range.step_low = std::min(range.step_low, static_cast<double>(point.step));
      range.step_high = std::max(range.step_high, static_cast<double>(point.step));
      range.loss_low = std::min(range.loss_low, point.loss);
      range.loss_high = std::max(range.loss_high, point.loss);
    }
  if (range.step_low == range.step_high) range.step_high += 1;
  double margin = 0.05 * (range.loss_high - range.loss_low);
  if (margin == 0) margin = std::max(0.1 * std::abs(range.loss_low), 1e-6);
  range.loss_low -= margin;
  range.loss_high += margin;
  return range;
}

std::vector<LossPoint> smooth(const std::vector<LossPoint>& points) {
  const std::size_t reach = points.size() / 80;
  return box_average(box_average(points, reach), reach);  // twice a box is a tent: no kinks where points enter or leave
}

}  // namespace tera
