#pragma once
// The loss of a run as a picture: SVG for documents, characters for a terminal. Same input, same bytes.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tera {

struct LossPoint {
  std::int64_t step = 0;
  double loss = 0;
};

struct LossCurves {
  std::string title;
  std::vector<LossPoint> train, eval;  // by step; values that are not finite are left out of the picture
};

// From a metrics.jsonl; UserError with file and line on anything that is none.
LossCurves read_loss_curves(const std::filesystem::path& metrics_file);

struct SvgSize {
  int width = 820, height = 420;
};
std::string loss_svg(const LossCurves& curves, SvgSize size = {});

struct TerminalPlot {
  int columns = 80, rows = 16;
  bool color = false;
};
std::string loss_text(const LossCurves& curves, const TerminalPlot& plot);

}  // namespace tera
