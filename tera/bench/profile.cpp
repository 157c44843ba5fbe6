#include "tera/bench/profile.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tera/base/file.h"

namespace tera {
namespace {

constexpr std::array<const char*, static_cast<std::size_t>(OpKind::count)> headings{"gemm", "attention", "memory-bound",
                                                                                    "optimizer", "transfer"};

std::size_t index(OpKind kind) { return static_cast<std::size_t>(kind); }

double sum(const Profile::Times& times) { return std::accumulate(times.begin(), times.end(), 0.0); }

// Milliseconds of a span that overlap with work on the compute queue.
double covered(const Profile::Span& span, const std::vector<Profile::Work>& work) {
  auto call = std::lower_bound(work.begin(), work.end(), span.begin,
                               [](const Profile::Work& one, double begin) { return one.end <= begin; });
  double ms = 0;
  for (; call != work.end() && call->begin < span.end; ++call)
    ms += std::min(call->end, span.end) - std::max(call->begin, span.begin);
  return ms;
}

}  // namespace

double Profile::of(OpKind kind) const {
  double ms = 0;
  for (const Work& call : work)
    if (call.kind == kind) ms += call.ms();
  return ms;
}

double Profile::busy() const {
  double ms = 0;
  for (const Work& call : work) ms += call.ms();
  return ms;
}

std::map<std::string, Profile::Times> Profile::by_block() const {
  std::map<std::string, Times> blocks;
  for (const Work& call : work) blocks[call.block][index(call.kind)] += call.ms();
  return blocks;
}

std::map<std::string, Profile::Overlap> Profile::overlaps() const {
  std::map<std::string, Overlap> found;
  for (const AsyncCall& call : async_calls) {
    Overlap& overlap = found[fmt::format("{} {}", call.queue, call.name)];
    ++overlap.calls;
    overlap.ms += call.ms();
    overlap.covered += covered(call, work);
  }
  return found;
}

std::string Profile::table() const {
  std::string text;
  const auto out = std::back_inserter(text);
  const auto line = [&](std::string_view name, const Times& times) {
    fmt::format_to(out, "{:<14}", name);
    for (double time : times) fmt::format_to(out, "{:>14.2f}", time);
    fmt::format_to(out, "{:>12.2f}{:>8.1f} %\n", sum(times), 100 * sum(times) / total_ms);
  };
  fmt::format_to(out, "{:<14}", "ms per step");
  for (const char* heading : headings) fmt::format_to(out, "{:>14}", heading);
  fmt::format_to(out, "{:>12}{:>10}\n", "sum", "share");
  Times totals{};
  for (const auto& [name, times] : by_block()) {
    line(name, times);
    for (std::size_t i = 0; i < totals.size(); ++i) totals[i] += times[i];
  }
  line("all", totals);
  fmt::format_to(out, "{:<14}{:>82.2f}{:>8.1f} %\n", "idle", total_ms - busy(), 100 * (total_ms - busy()) / total_ms);
  if (async_calls.empty()) return text;
  fmt::format_to(out, "\n{:<32}{:>10}{:>14}{:>22}\n", "beside this", "calls", "ms under way", "while this worked");
  for (const auto& [name, overlap] : overlaps())
    fmt::format_to(out, "{:<32}{:>10}{:>14.2f}{:>20.1f} %\n", name, overlap.calls, overlap.ms,
                   overlap.ms > 0 ? 100 * overlap.covered / overlap.ms : 0.0);
  return text;
}

void write_trace(const Profile& profile, const std::filesystem::path& file) {
  nlohmann::json events = nlohmann::json::array();
  std::map<std::string, int> rows{{"the rank's queue", 0}};  // one below the other
  const auto add = [&](const std::string& queue, const std::string& name, const Profile::Span& span) {
    const int row = rows.try_emplace(queue, static_cast<int>(rows.size())).first->second;
    events.push_back(
        {{"name", name}, {"ph", "X"}, {"ts", 1e3 * span.begin}, {"dur", 1e3 * span.ms()}, {"pid", 0}, {"tid", row}});
  };
  for (const Profile::Work& call : profile.work)
    add("the rank's queue", fmt::format("{} {}", call.block, headings[index(call.kind)]), call);
  for (const Profile::AsyncCall& call : profile.async_calls) add(call.queue, call.name, call);
  for (const auto& [queue, row] : rows)
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", row}, {"args", {{"name", queue}}}});
  write_file_atomically(file, nlohmann::json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump());
}

}  // namespace tera
