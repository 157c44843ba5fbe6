#include "tera/train/step/rehearsal.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tera/data/batching/batch_loader.h"

namespace tera {
namespace {

// Chunks whose F is overlapped with a B, and the chunks of those B's.
std::set<std::pair<Act, int>> chunks_in_pairs(const StagePlan& plan) {
  std::set<std::pair<Act, int>> chunks;
  for (std::size_t i = 0; i < plan.actions.size(); ++i)
    if (plan.actions[i].with_next) {
      chunks.emplace(Act::F, plan.actions[i].chunk);
      chunks.emplace(Act::B, plan.actions[i + 1].chunk);
    }
  return chunks;
}

}  // namespace

bool needs_more(const StagePlan& plan, const StagePlan& than) {
  const auto pairs = chunks_in_pairs(plan), known = chunks_in_pairs(than);
  if (!std::ranges::includes(known, pairs)) return true;
  for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
    const ChunkPlan &a = plan.chunks[i], &b = than.chunks[i];
    if (a.x > b.x || a.dy > b.dy || a.pools.f_to_b > b.pools.f_to_b || a.pools.f_to_w > b.pools.f_to_w ||
        a.pools.b_to_w > b.pools.b_to_w)
      return true;
  }
  return false;
}

PlannedCalls with_fewer_documents(PlannedCalls calls) {
  const auto expand = [](auto& kept) {
    const auto largest = kept;
    for (const auto& call : largest)
      for (const std::int64_t documents : document_counts(call.shape.q_offsets.dim(0) - 1)) {
        auto fewer = call;
        fewer.shape.q_offsets = fewer.shape.k_offsets = call.shape.q_offsets.rows(0, documents + 1);
        if (documents < call.shape.q_offsets.dim(0) - 1) kept.push_back(fewer);
      }
  };
  expand(calls.attentions);
  expand(calls.attention_backs);
  return calls;
}

}  // namespace tera
