#pragma once
// What both pictures of a loss share: which points count, the range they span, round tick values, a smoothed line.

#include <string>
#include <vector>

#include "tera/train/sinks/loss_plot.h"

namespace tera {

struct Ticks {
  double first = 0, step = 1;
  int count = 0, decimals = 0;
  double at(int i) const { return first + step * i; }
  std::string label(int i) const;
};

// Round values (1, 2, 2.5 or 5 times a power of ten) inside [low, high], about `wanted` of them. `integers` keeps to
// whole numbers.
Ticks round_ticks(double low, double high, int wanted, bool integers);

struct PlotRange {
  double step_low = 0, step_high = 1, loss_low = 0, loss_high = 1;
};

// Only finite values. UserError when nothing is left to draw.
LossCurves finite_points(const LossCurves& curves);
PlotRange range_of(const LossCurves& curves);

// A centred average over about a fortieth of the points on either side; near the beginning, where the loss falls
// fastest, the window shrinks so that the line starts where the data does.
std::vector<LossPoint> smooth(const std::vector<LossPoint>& points);

}  // namespace tera
