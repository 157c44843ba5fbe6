#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tera/base/error.h"
#include "tera/pipeline/check.h"

namespace tera {
namespace {

// F0, B1; F0a, B1b where there are several chunks. BW is drawn as a B of its full length.
std::string short_label(const Action& action, int chunks) {
  constexpr std::array letters{'F', 'B', 'W', 'B'};
  std::string text = fmt::format("{}{}", letters[static_cast<std::size_t>(action.act)], action.microbatch);
  if (chunks > 1) text += static_cast<char>('a' + action.chunk % 26);
  return text;
}

struct Columns {
  double unit;
  std::size_t width;
  std::size_t at(double time) const { return static_cast<std::size_t>(std::lround(time / unit)) * width; }
};

std::string line_of(const Schedule& actions, const RankReport& report, const ActionCosts& costs, const Columns& columns,
                    std::size_t length, int chunks) {
  std::string line(length, ' ');
  for (std::size_t i = 0; i < length; i += columns.width) line[i] = '.';
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const std::size_t begin = columns.at(report.start[i]);
    const std::size_t end = columns.at(report.start[i] + costs.of(actions[i].act));
    std::string cell = short_label(actions[i], chunks);
    cell.resize(std::max(cell.size(), end - begin - 1), '-');
    for (std::size_t k = 0; k < columns.width && begin + k < end; ++k) line[begin + k] = ' ';
    line.replace(begin, std::min(cell.size(), end - begin), cell, 0, std::min(cell.size(), end - begin));
    if (end > begin) line[end - 1] = ' ';
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

std::string picture(const PipelineSchedule& schedule, const ActionCosts& costs, double unit) {
  require(unit > 0, "a picture's unit of time is {}", unit);
  const ScheduleReport report = check(schedule, costs);
  const int chunks = schedule.placement.chunks;
  std::size_t widest = 0;
  for (const auto& actions : schedule.ranks)
    for (const auto& action : actions) widest = std::max(widest, short_label(action, chunks).size());
  const Columns columns{unit, widest + 1};
  const std::size_t length = columns.at(report.makespan);
  std::string text;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    text += fmt::format("rank {:<3}{}\n", rank,
                        line_of(schedule.ranks[rank], report.ranks[rank], costs, columns, length, chunks));
  return text;
}

}  // namespace tera
