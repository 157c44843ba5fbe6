#include "tests/support/dependency_graph.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace tera::test {
namespace {

using enum Act;

std::size_t index(int i) { return static_cast<std::size_t>(i); }

// The time of the longest chain of actions, or nothing where an action is missing, twice there or waits for itself.
// Sends never wait. No code is shared with the checker.
class DependencyGraph {
 public:
  DependencyGraph(const PipelineSchedule& schedule, const ActionCosts& costs) : schedule_(schedule), costs_(costs) {}

  std::optional<double> longest_chain() {
    const auto& p = schedule_.placement;
    for (int rank = 0; rank < p.stages; ++rank)
      for (std::size_t i = 0; i < schedule_.ranks[index(rank)].size(); ++i)
        if (!add(rank, i)) return std::nullopt;
    const int per_rank = p.chunks * schedule_.microbatches * (schedule_.backward ? 3 : 1);
    if (static_cast<int>(node_.size()) != p.stages * per_rank) return std::nullopt;
    double longest = 0;
    for (int rank = 0; rank < p.stages; ++rank) {
      const std::size_t actions = schedule_.ranks[index(rank)].size();
      if (actions == 0) continue;
      const double end = end_of({rank, actions - 1});
      if (end < 0) return std::nullopt;
      longest = std::max(longest, end);
    }
    return longest;
  }

 private:
  using Node = std::pair<int, std::size_t>;  // rank, index in its list

  bool add(int rank, std::size_t i) {
    const Action& a = schedule_.ranks[index(rank)][i];
    const int stage = schedule_.placement.virtual_stage(rank, a.chunk);
    bool fresh = true;
    const auto enter = [&](Act act) {
      fresh &= node_.emplace(std::tuple(act, stage, a.microbatch), Node{rank, i}).second;
    };
    if (a.act == F) enter(F);
    if (a.act == B || a.act == BW) enter(B);
    if (a.act == W || a.act == BW) enter(W);
    return fresh && a.microbatch < schedule_.microbatches;
  }

  // Two actions that run together are one node, that of the first.
  Node node_of_pair(const Node& node) const {
    const auto [rank, i] = node;
    return {rank, i > 0 && schedule_.ranks[index(rank)][i - 1].with_next ? i - 1 : i};
  }

  double end_of(const Node& part) {  // -1: waits for itself
    const Node node = node_of_pair(part);
    const auto [known, fresh] = end_.emplace(node, -1.0);
    if (!fresh) return known->second;
    const auto [rank, i] = node;
    double start = 0, takes = 0;
    const auto after = [&](const Node& other) {
      const double end = node_of_pair(other) == node ? -1 : end_of(other);
      start = end < 0 || start < 0 ? -1 : std::max(start, end);
    };
    if (i > 0) after({rank, i - 1});
    const auto& actions = schedule_.ranks[index(rank)];
    for (std::size_t k = i; k < actions.size() && (k == i || actions[k - 1].with_next); ++k) {
      const Action& a = actions[k];
      const int stage = schedule_.placement.virtual_stage(rank, a.chunk);
      takes += costs_.of(a.act);
      if (a.act == F && stage > 0) after(node_.at({F, stage - 1, a.microbatch}));
      if (a.act == B || a.act == BW) {
        after(node_.at({F, stage, a.microbatch}));
        if (stage + 1 < schedule_.placement.virtual_stages()) after(node_.at({B, stage + 1, a.microbatch}));
      }
      if (a.act == W) after(node_.at({B, stage, a.microbatch}));
    }
    return end_[node] = start < 0 ? -1 : start + takes;
  }

  const PipelineSchedule& schedule_;
  const ActionCosts& costs_;
  std::map<std::tuple<Act, int, int>, Node> node_;
  std::map<Node, double> end_;
};

}  // namespace

std::optional<double> longest_chain(const PipelineSchedule& schedule, const ActionCosts& costs) {
  return DependencyGraph(schedule, costs).longest_chain();
}

}  // namespace tera::test
