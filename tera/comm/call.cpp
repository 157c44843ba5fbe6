#include "tera/comm/call.h"

#include <fmt/core.h>

#include "tera/base/joined.h"

namespace tera {
namespace {

std::string named(std::span<const int> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", joined(ranks, ", "));
}

}  // namespace

std::string to_string(const Call& call) {
  const std::string_view kind = name_of(call.kind);
  switch (call.kind) {
    case CallKind::none:
    case CallKind::barrier:
    case CallKind::split: return std::string(kind);
    case CallKind::exchange: return fmt::format("{} of {} elements", kind, call.elements);
    case CallKind::all_reduce:
    case CallKind::reduce_scatter:
      return fmt::format("{} {} {} x {}", kind, name_of(call.how), name_of(call.dtype), call.elements);
    case CallKind::broadcast:
      return fmt::format("{} from {} {} x {}", kind, call.root, name_of(call.dtype), call.elements);
    case CallKind::all_gather:
    case CallKind::all_to_all: break;
  }
  return fmt::format("{} {} x {}", kind, name_of(call.dtype), call.elements);
}

std::string to_string(const RankActivity& activity) {
  if (activity.group.empty()) return fmt::format("rank {} has called nothing yet", activity.rank);
  return fmt::format("rank {} {} {} of {}, its call {}", activity.rank, activity.inside ? "is in" : "last did",
                     to_string(activity.call), activity.group, activity.calls);
}

std::string describe_absent(std::span<const int> ranks, std::span<const std::string> activities) {
  return fmt::format("{} did not come ({})", named(ranks), joined(activities, "; "));
}

std::string describe_awaited(std::span<const int> ranks, std::span<const std::string> activities) {
  return fmt::format("it waits for {} ({})", named(ranks), joined(activities, "; "));
}

}  // namespace tera
