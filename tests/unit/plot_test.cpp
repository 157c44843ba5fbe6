#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "tera/base/error.h"
#include "tera/train/sinks/loss_plot.h"
#include "tera/train/sinks/plot_scale.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

LossCurves falling(int steps) {
  LossCurves curves{"a <run> & more", {}, {}};
  for (int i = 1; i <= steps; ++i) {
    curves.train.push_back({i, 2 + 4 * std::exp(-i / 20.0)});
    if (i % 50 == 0) curves.eval.push_back({i, 2.1 + 4 * std::exp(-i / 20.0)});
  }
  return curves;
}

int count_of(std::string_view text, std::string_view part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

// Cells a terminal would use: every byte that does not continue a UTF-8 character.
int cells(std::string_view line) {
  return static_cast<int>(
      std::ranges::count_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

TEST(LossPlot, ReadsMetricsFiles) {
  const TempFolder folder;
  const auto path = folder.write("m.jsonl",
                                 "{\"step\":1,\"loss\":5.5,\"lr\":1}\n{\"step\":2,\"loss\":\"nan\"}\n"
                                 "{\"step\":2,\"eval_loss\":5.0}\n{\"step\":3,\"loss\":4}\n{\"step\":3,\"loss\":3.5}");
  const LossCurves curves = read_loss_curves(path);
  ASSERT_EQ(curves.train.size(), 3u);
  EXPECT_EQ(curves.train[0].loss, 5.5);
  EXPECT_TRUE(std::isnan(curves.train[1].loss));
  EXPECT_EQ(curves.train[2].loss, 3.5);  // a step written again counts as last written
  ASSERT_EQ(curves.eval.size(), 1u);
  EXPECT_EQ(curves.eval[0].step, 2);
}

TEST(LossPlot, BadLinesAreNamed) {
  const TempFolder folder;
  for (const char* bad : {"", "x", "[]", "{}", "{\"step\":1}", "{\"step\":1.5,\"loss\":1}",
                          "{\"step\":1,\"loss\":\"x\"}", "{\"step\":1,"}) {
    const auto path = folder.write("m.jsonl", std::string("{\"step\":1,\"loss\":5.5}\n") + bad + "\n");
    const std::string message = message_of<UserError>([&] { read_loss_curves(path); });
    EXPECT_TRUE(contains(message, "m.jsonl line 2")) << bad << ": " << message;
  }
  EXPECT_THROW(read_loss_curves(folder / "none"), UserError);
}

TEST(LossPlot, TicksAreRoundInsideAndAboutAsManyAsWanted) {
  const auto labels = [](double low, double high, int wanted, bool whole) {
    const Ticks ticks = round_ticks(low, high, wanted, whole);
    std::string all;
    for (int i = 0; i < ticks.count; ++i) all += ticks.label(i) + " ";
    return all;
  };
  EXPECT_EQ(labels(1.6, 6.1, 6, false), "2 3 4 5 6 ");
  EXPECT_EQ(labels(0, 1, 5, false), "0.0 0.2 0.4 0.6 0.8 1.0 ");
  EXPECT_EQ(labels(-0.1, 1, 4, false), "0.0 0.5 1.0 ");
  EXPECT_EQ(labels(2.01, 2.09, 4, false), "2.02 2.04 2.06 2.08 ");
  EXPECT_EQ(labels(0, 10, 4, false), "0.0 2.5 5.0 7.5 10.0 ");
  EXPECT_EQ(labels(1, 300, 8, true), "50 100 150 200 250 300 ");
  EXPECT_EQ(labels(1, 3, 8, true), "1 2 3 ");
  EXPECT_EQ(labels(0, 10, 4, true), "0 5 10 ");
  EXPECT_EQ(labels(0, 500000, 5, true), "0k 100k 200k 300k 400k 500k ");
  for (double scale = 1e-9; scale < 1e12; scale *= 3.7)
    for (const int wanted : {2, 5, 9}) {
      const Ticks ticks = round_ticks(0.13 * scale, scale, wanted, false);
      EXPECT_GE(ticks.at(0), 0.13 * scale * (1 - 1e-9));
      EXPECT_LE(ticks.at(ticks.count - 1), scale * (1 + 1e-9));
      EXPECT_LE(ticks.count, wanted + 1);
      EXPECT_GE(ticks.count, 1);
    }
}

TEST(LossPlot, SmoothingKeepsTheStartAndRemovesNoise) {
  std::vector<LossPoint> flat, ramp;
  for (int i = 0; i < 400; ++i) {
    flat.push_back({i, 3.0 + (i % 2 == 0 ? 0.5 : -0.5)});
    ramp.push_back({i, 1000.0 - i});
  }
  EXPECT_EQ(smooth(flat)[0].loss, 3.5);
  for (std::size_t i = 10; i < 400; ++i) EXPECT_NEAR(smooth(flat)[i].loss, 3.0, 0.06);
  for (std::size_t i = 0; i < 390; ++i) EXPECT_NEAR(smooth(ramp)[i].loss, ramp[i].loss, 1e-9);  // no lag
  EXPECT_TRUE(smooth({}).empty());
}

TEST(LossPlot, SvgIsWholeEscapedAndRepeatable) {
  const std::string svg = loss_svg(falling(300));
  EXPECT_EQ(svg, loss_svg(falling(300)));
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_TRUE(contains(svg, "a &lt;run> &amp; more"));
  EXPECT_EQ(count_of(svg, "<circle"), 6 + 1);  // the evaluations and the legend's
  EXPECT_EQ(count_of(svg, "class=\"raw\""), 1);
  EXPECT_TRUE(contains(svg, "prefers-color-scheme: dark"));
  EXPECT_FALSE(contains(svg, "nan"));
  // The first point lies left and near the top, the last right and near the bottom.
  const std::size_t path = svg.find("<path class=\"loss\" d=\"M");
  double x = 0, y = 0;
  ASSERT_EQ(std::sscanf(svg.c_str() + path, "<path class=\"loss\" d=\"M%lf %lf", &x, &y), 2);
  EXPECT_NEAR(x, 58, 0.1);
  EXPECT_LT(y, 80);
}

TEST(LossPlot, ManyPointsStaySmall) {
  LossCurves curves = falling(300);
  for (int i = 301; i <= 200000; ++i) curves.train.push_back({i, 2.0 + 0.01 * (i % 7)});
  EXPECT_LT(loss_svg(curves).size(), 80'000u);
}

TEST(LossPlot, OddInputsAreDrawnOrRefused) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const LossCurves cases[] = {{"", {{1, 2.0}}, {}},
                              {"", {}, {{1, 2.0}}},
                              {"", {{1, 0.0}, {2, 0.0}}, {}},
                              {"", {{1, nan}, {2, 3.0}, {3, infinity}}, {}},
                              {"", {{1, 1e-12}, {2, 1e12}}, {}}};
  for (const LossCurves& curves : cases) {
    const std::string svg = loss_svg(curves), text = loss_text(curves, {80, 16, false});
    EXPECT_FALSE(contains(svg, "nan") || contains(svg, "inf"));
    EXPECT_FALSE(contains(text, "nan") || contains(text, "inf"));
  }
  EXPECT_THROW(loss_svg({"", {}, {}}), UserError);
  EXPECT_THROW(loss_text({"", {{1, nan}}, {}}, {80, 16, false}), UserError);
  EXPECT_THROW(loss_svg(falling(10), {10, 10}), Error);
}

TEST(LossPlot, TextFitsItsSpaceAndShowsTheFall) {
  for (const auto& [columns, rows] : {std::pair{80, 16}, {30, 8}, {120, 30}}) {
    const std::string text = loss_text(falling(300), {columns, rows, false});
    EXPECT_EQ(count_of(text, "\n"), rows);
    std::vector<std::string_view> lines;
    for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(lines.back().size() + 1))
      lines.push_back(rest.substr(0, rest.find('\n')));
    for (std::size_t i = 1; i < lines.size(); ++i) EXPECT_LE(cells(lines[i]), columns) << lines[i];
    if (columns < 80) continue;
    // Without spaces at their ends, lines grow as the curve falls to the right.
    EXPECT_LT(cells(lines[2]) + 10, cells(lines[lines.size() - 4]));
    EXPECT_TRUE(lines.back().ends_with("300")) << lines.back();
  }
  EXPECT_GE(count_of(loss_text(falling(300), {80, 16, false}), "●"), 4);
  EXPECT_TRUE(contains(loss_text(falling(300), {80, 16, true}), "\x1b["));
  EXPECT_FALSE(contains(loss_text(falling(300), {80, 16, false}), "\x1b["));
}

}  // namespace
}  // namespace tera::test
