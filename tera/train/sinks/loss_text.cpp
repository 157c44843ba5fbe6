#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "tera/base/error.h"
#include "tera/train/sinks/loss_plot.h"
#include "tera/train/sinks/plot_scale.h"

namespace tera {
namespace {

// A Braille character is a cell of 2 x 4 dots; this is a canvas of such cells.
class BrailleCanvas {
 public:
  BrailleCanvas(int columns, int rows)
      : columns_(columns), rows_(rows), cells_(static_cast<std::size_t>(columns) * static_cast<std::size_t>(rows)) {}

  int width() const { return columns_ * 2; }
  int height() const { return rows_ * 4; }

  void dot(int x, int y) {
    // Dots 1-3 and 4-6 run down the columns, 7 and 8 were added below.
    constexpr std::array<std::array<std::uint8_t, 2>, 4> bits{{{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
    if (x < 0 || x >= width() || y < 0 || y >= height()) return;
    cell(x / 2, y / 4) |= bits[static_cast<std::size_t>(y % 4)][static_cast<std::size_t>(x % 2)];
  }
  std::uint8_t& cell(int column, int row) {
    return cells_[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns_) +
                  static_cast<std::size_t>(column)];
  }

 private:
  int columns_, rows_;
  std::vector<std::uint8_t> cells_;
};

std::string braille(std::uint8_t bits) {  // U+2800 and up
  return {'\xe2', static_cast<char>(0xa0 | bits >> 6), static_cast<char>(0x80 | (bits & 0x3f))};
}

class TextPlot {
 public:
  TextPlot(const LossCurves& curves, const TerminalPlot& plot)
      : curves_(curves),
        smoothed_(smooth(curves.train)),
        range_(range_of(curves)),
        plot_(plot),
        canvas_(plot.columns - label_columns - 2, plot.rows - 3) {}

  std::string draw() {
    draw_line();
    out_ = fmt::format("{:>{}}  {}", "loss", label_columns,
                       color("1", curves_.title.empty() ? "Training loss" : curves_.title));
    if (!curves_.eval.empty()) out_ += fmt::format("   {} evaluation", color("33", eval_mark));
    out_ += '\n';
    const Ticks ticks = round_ticks(range_.loss_low, range_.loss_high, std::max(2, rows() / 2), false);
    for (int row = 0; row < rows(); ++row) draw_row(row, ticks);
    draw_step_axis();
    return std::move(out_);
  }

 private:
  static constexpr int label_columns = 8;
  static constexpr std::string_view eval_mark = "●";

  int rows() const { return canvas_.height() / 4; }
  int columns() const { return canvas_.width() / 2; }

  std::string color(std::string_view code, std::string_view text) const {
    return plot_.color ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
  }
  int x(double step, int cells) const {
    return static_cast<int>(std::lround((step - range_.step_low) / (range_.step_high - range_.step_low) * (cells - 1)));
  }
  int y(double loss, int cells) const {
    return static_cast<int>(
        std::lround((range_.loss_high - loss) / (range_.loss_high - range_.loss_low) * (cells - 1)));
  }

  // From point to point, every column of dots once and every gap between columns closed.
  void draw_line() {
    for (std::size_t i = 0; i < smoothed_.size(); ++i) {
      const LossPoint& from = smoothed_[i == 0 ? 0 : i - 1];
      const LossPoint& to = smoothed_[i];
      const int x0 = x(static_cast<double>(from.step), canvas_.width()),
                x1 = x(static_cast<double>(to.step), canvas_.width());
      const int y0 = y(from.loss, canvas_.height()), y1 = y(to.loss, canvas_.height());
      const int length = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
      for (int k = 0; k <= length; ++k) canvas_.dot(x0 + (x1 - x0) * k / length, y0 + (y1 - y0) * k / length);
    }
  }

  bool has_eval(int column, int row) const {
    return std::ranges::any_of(curves_.eval, [&](const LossPoint& point) {
      return x(static_cast<double>(point.step), columns()) == column && y(point.loss, rows()) == row;
    });
  }

  void draw_row(int row, const Ticks& ticks) {
    std::string label;
    for (int i = 0; i < ticks.count; ++i)
      if (y(ticks.at(i), rows()) == row) label = ticks.label(i);
    out_ += color("90", fmt::format("{:>{}} {}", label, label_columns, label.empty() ? "│" : "┤"));
    std::string line;  // text of one colour
    const auto flush = [&] {
      if (!line.empty()) out_ += color("36", line);
      line.clear();
    };
    for (int column = 0; column < columns(); ++column) {
      const std::uint8_t bits = canvas_.cell(column, row);
      if (has_eval(column, row)) {
        flush();
        out_ += color("33", eval_mark);
      } else {
        line += bits == 0 ? " " : braille(bits);
      }
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    flush();
    out_ += '\n';
  }

  void draw_step_axis() {
    const Ticks ticks = round_ticks(range_.step_low, range_.step_high, std::max(2, columns() / 12), true);
    std::string axis = fmt::format("{:>{}} └", "", label_columns),
                labels = fmt::format("{:>{}}", "step", label_columns);
    for (int column = 0; column < columns(); ++column) {
      const int tick = tick_at(ticks, column);
      axis += tick < 0 ? "─" : "┬";
      if (tick < 0) continue;
      const std::string label = ticks.label(tick);
      const int right_end = std::min(column + static_cast<int>(label.size()) / 2, columns() - 1);  // none hangs over
      const int begin = label_columns + 2 + right_end + 1 - static_cast<int>(label.size());
      if (begin < std::ssize(labels) + 2) continue;  // a label must not touch the one before it
      labels.resize(static_cast<std::size_t>(begin), ' ');
      labels += label;
    }
    out_ += color("90", axis) + "\n" + color("90", labels) + "\n";
  }

  int tick_at(const Ticks& ticks, int column) const {
    for (int i = 0; i < ticks.count; ++i)
      if (x(ticks.at(i), columns()) == column) return i;
    return -1;
  }

  const LossCurves& curves_;
  std::vector<LossPoint> smoothed_;
  PlotRange range_;
  TerminalPlot plot_;
  BrailleCanvas canvas_;
  std::string out_;
};

}  // namespace

std::string loss_text(const LossCurves& curves, const TerminalPlot& plot) {
  TerminalPlot clamped = plot;  // a narrower terminal wraps, a wider one would stretch the curve flat
  clamped.columns = std::clamp(plot.columns, 30, 140);
  clamped.rows = std::clamp(plot.rows, 7, 60);
  const LossCurves finite = finite_points(curves);
  return TextPlot(finite, clamped).draw();
}

}  // namespace tera
