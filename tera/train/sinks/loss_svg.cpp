#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "tera/base/error.h"
#include "tera/train/sinks/loss_plot.h"
#include "tera/train/sinks/plot_scale.h"

namespace tera {
namespace {

// Colours as classes, so that a reader's dark theme can change them; a viewer that knows no themes shows the light one.
constexpr std::string_view style = R"(<style>
  text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 12px; fill: #57606a; }
  .card { fill: #ffffff; stroke: #d8dee4; }
  .title { font-size: 15px; font-weight: 600; fill: #1f2328; }
  .grid { stroke: #eaeef2; }
  .axis { stroke: #afb8c1; }
  .raw { fill: none; stroke: #2563eb; stroke-opacity: 0.28; stroke-width: 1; stroke-linejoin: round; }
  .loss { fill: none; stroke: #2563eb; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
  .eval { fill: none; stroke: #d9480f; stroke-width: 1.4; stroke-dasharray: 2 4; stroke-linecap: round; }
  .point { fill: #d9480f; stroke: #ffffff; stroke-width: 1.5; }
  .end { font-weight: 600; }
  .end-loss { fill: #2563eb; }
  .end-eval { fill: #d9480f; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1; }
    .card { fill: #0d1117; stroke: #30363d; }
    .title { fill: #f0f6fc; }
    .grid { stroke: #21262d; }
    .axis { stroke: #656c76; }
    .raw, .loss { stroke: #58a6ff; }
    .eval { stroke: #f0883e; }
    .point { fill: #f0883e; stroke: #0d1117; }
    .end-loss { fill: #58a6ff; }
    .end-eval { fill: #f0883e; }
  }
</style>
)";

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  }
  return out;
}

class SvgPlot {
 public:
  SvgPlot(const LossCurves& curves, SvgSize size)
      : curves_(curves), smoothed_(smooth(curves.train)), range_(range_of(curves)), size_(size) {
    left_ = 58, right_ = size.width - 64.0, top_ = 56, bottom_ = size.height - 48.0;
  }

  std::string draw() {
    add(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img">)",
        size_.width, size_.height);
    add("\n<title>{}</title>\n", title());
    out_ += style;
    add(R"(<rect class="card" x="0.5" y="0.5" width="{}" height="{}" rx="8"/>)", size_.width - 1, size_.height - 1);
    add("\n<text class=\"title\" x=\"{:.0f}\" y=\"32\">{}</text>\n", left_, title());
    draw_loss_axis();
    draw_step_axis();
    draw_curves();
    draw_legend();
    draw_last_values();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  std::string title() const { return curves_.title.empty() ? "Training loss" : escape(curves_.title); }
  double x(double step) const {
    return left_ + (step - range_.step_low) / (range_.step_high - range_.step_low) * (right_ - left_);
  }
  double y(double loss) const {
    return bottom_ - (loss - range_.loss_low) / (range_.loss_high - range_.loss_low) * (bottom_ - top_);
  }

  void draw_loss_axis() {
    const Ticks ticks = round_ticks(range_.loss_low, range_.loss_high, 6, false);
    for (int i = 0; i < ticks.count; ++i) {
      const double at = y(ticks.at(i));
      add(R"(<line class="grid" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>)", left_, at, right_, at);
      add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)", left_ - 8, at + 4, ticks.label(i));
      out_ += '\n';
    }
  }

  void draw_step_axis() {
    add(R"(<line class="axis" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>)", left_, bottom_, right_, bottom_);
    out_ += '\n';
    const Ticks ticks = round_ticks(range_.step_low, range_.step_high, 8, true);
    for (int i = 0; i < ticks.count; ++i) {
      const double at = x(ticks.at(i));
      add(R"(<line class="axis" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>)", at, bottom_, at, bottom_ + 4);
      add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)", at, bottom_ + 18, ticks.label(i));
      out_ += '\n';
    }
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">step</text>\n", (left_ + right_) / 2, bottom_ + 36);
  }

  // One path; where more points than pixels lie side by side, the lowest and the highest of each pixel stand for all.
  void draw_line(std::string_view kind, const std::vector<LossPoint>& points) {
    if (points.empty()) return;
    add(R"(<path class="{}" d=")", kind);
    char command = 'M';
    const auto put = [&](const LossPoint& point) {
      add("{}{:.1f} {:.2f}", command, x(static_cast<double>(point.step)), y(point.loss));
      command = 'L';
    };
    const std::size_t per_pixel = points.size() / static_cast<std::size_t>(right_ - left_) + 1;
    for (std::size_t i = 0; i < points.size(); i += per_pixel) {
      const std::size_t end = std::min(points.size(), i + per_pixel);
      auto [low, high] = std::minmax_element(points.begin() + static_cast<std::ptrdiff_t>(i),
                                             points.begin() + static_cast<std::ptrdiff_t>(end),
                                             [](const auto& a, const auto& b) { return a.loss < b.loss; });
      if (high < low) std::swap(low, high);
      put(*low);
      if (high != low) put(*high);
    }
    if (points.size() == 1) out_ += "h0.01";  // its round cap shows as a dot
    out_ += "\"/>\n";
  }

  void draw_curves() {
    if (smoothed_.size() >= 40) draw_line("raw", curves_.train);
    draw_line("loss", smoothed_);
    draw_line("eval", curves_.eval);
    for (const LossPoint& point : curves_.eval) {
      add(R"(<circle class="point" cx="{:.1f}" cy="{:.2f}" r="4"/>)", x(static_cast<double>(point.step)),
          y(point.loss));
      out_ += '\n';
    }
  }

  void draw_legend() {
    double at = right_;
    if (!curves_.eval.empty()) {
      add(R"(<text x="{:.1f}" y="32" text-anchor="end">evaluation</text>)", at);
      add(R"(<circle class="point" cx="{:.1f}" cy="28" r="4"/>)", at - 74);
      at -= 100;
    }
    if (!curves_.train.empty()) {
      add(R"(<text x="{:.1f}" y="32" text-anchor="end">training</text>)", at);
      add(R"(<path class="loss" d="M{:.1f} 28H{:.1f}"/>)", at - 76, at - 54);
    }
    out_ += '\n';
  }

  // The last values of the curves, as labels beside their ends that do not overlap.
  void draw_last_values() {
    double train_at = smoothed_.empty() ? 0 : y(smoothed_.back().loss),
           eval_at = curves_.eval.empty() ? 0 : y(curves_.eval.back().loss);
    if (!smoothed_.empty() && !curves_.eval.empty() && std::abs(train_at - eval_at) < 14) {
      const double middle = (train_at + eval_at) / 2, side = train_at <= eval_at ? -7 : 7;
      train_at = middle + side;
      eval_at = middle - side;
    }
    if (!smoothed_.empty())
      add("<text class=\"end end-loss\" x=\"{:.1f}\" y=\"{:.1f}\">{:.3f}</text>\n", right_ + 9, train_at + 4,
          smoothed_.back().loss);
    if (!curves_.eval.empty())
      add("<text class=\"end end-eval\" x=\"{:.1f}\" y=\"{:.1f}\">{:.3f}</text>\n", right_ + 9, eval_at + 4,
          curves_.eval.back().loss);
  }

  const LossCurves& curves_;
  std::vector<LossPoint> smoothed_;
  PlotRange range_;
  SvgSize size_;
  double left_, right_, top_, bottom_;  // edges of the plotting area
  std::string out_;
};

}  // namespace

std::string loss_svg(const LossCurves& curves, SvgSize size) {
  require(size.width >= 200 && size.height >= 150, "a plot of {} x {} is too small", size.width, size.height);
  const LossCurves finite = finite_points(curves);
  return SvgPlot(finite, size).draw();
}

}  // namespace tera
