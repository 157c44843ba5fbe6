#include "tera/pipeline/schedules.h"

#include <algorithm>

#include "tera/base/error.h"

namespace tera {
namespace {

struct Visit {
  int chunk, microbatch;
};

// The order in which every rank plays its forwards: group after group, in each group chunk after chunk.
std::vector<Visit> visits(int chunks, int microbatches, int group_size) {
  std::vector<Visit> order;
  for (int begin = 0; begin < microbatches; begin += group_size)
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int i = begin; i < std::min(begin + group_size, microbatches); ++i) order.push_back({chunk, i});
  return order;
}

// Forwards in the order of visits, backwards in the same order with the chunks reversed, `warmup` forwards ahead.
Schedule alternate(const std::vector<Visit>& order, int chunks, int warmup, bool together) {
  const std::size_t total = order.size(), ahead = std::min<std::size_t>(static_cast<std::size_t>(warmup), total);
  Schedule schedule;
  schedule.reserve(2 * total);
  const auto forward = [&](const Visit& v) { schedule.push_back({Act::F, v.microbatch, v.chunk}); };
  for (std::size_t i = 0; i < ahead; ++i) forward(order[i]);
  for (std::size_t i = 0; i < total; ++i) {
    if (i + ahead < total) {
      forward(order[i + ahead]);
      schedule.back().with_next = together;
    }
    schedule.push_back({Act::BW, order[i].microbatch, chunks - 1 - order[i].chunk});
  }
  return schedule;
}

// The fewest microbatches, at least this many, whose last group is whole or has one for each stage.
int rounded_up(int microbatches, int stages, int group_size) {
  const int rest = microbatches % group_size;
  return rest == 0 || rest >= stages ? microbatches : microbatches - rest + stages;
}

// One microbatch per stage and round: when the loop comes back to rank 0, that rank has just become free.
Schedule forward_loop(const Placement& placement, int microbatches) {
  Schedule schedule;
  for (const auto& visit : visits(placement.chunks, microbatches, placement.stages))
    schedule.push_back({Act::F, visit.microbatch, visit.chunk});
  return schedule;
}

// The way down is `ahead` microbatches ahead of the way up: the first one is back when they are played.
Schedule forward_v(int ahead, int microbatches) {
  Schedule schedule;
  for (int i = 0; i < microbatches + ahead; ++i) {
    if (i >= ahead) schedule.push_back({Act::F, i - ahead, 1});
    if (i < microbatches) schedule.push_back({Act::F, i, 0});
  }
  return schedule;
}

}  // namespace

void require_shape(const Placement& placement, int microbatches) {
  require_valid(placement);
  require_user(microbatches >= 1, "a pipeline needs at least one microbatch per step, not {}", microbatches);
  constexpr std::int64_t most = 1 << 24;
  require_user(std::int64_t{microbatches} * placement.virtual_stages() <= most,
               "{} microbatches on {} virtual stages are more than the {} steps a schedule may have", microbatches,
               placement.virtual_stages(), most);
}

double ActionCosts::of(Act act) const {
  switch (act) {
    case Act::F: return F;
    case Act::B: return B;
    case Act::W: return W;
    case Act::BW: return B + W;
  }
  fail("no such action");
}

PipelineSchedule one_f_one_b(int stages, int microbatches, bool together) {
  const Placement placement{stages};
  require_shape(placement, microbatches);
  PipelineSchedule result{placement, microbatches};
  const auto order = visits(1, microbatches, microbatches);
  for (int rank = 0; rank < stages; ++rank) {
    const int behind = stages - 1 - rank;
    result.ranks.push_back(alternate(order, 1, together ? 2 * behind + 1 : behind, together));
  }
  return result;
}

PipelineSchedule interleaved(int stages, int chunks, int microbatches, int group_size, bool together) {
  const Placement placement{stages, chunks};
  require_shape(placement, microbatches);
  require_user(group_size >= stages,
               "the interleaved schedule takes groups of at least one microbatch per pipeline stage: "
               "microbatch_group_size_per_vp_stage is {}, valid are {} (the number of stages) and more",
               group_size, stages);
  if (chunks == 1)
    return one_f_one_b(stages, microbatches, together);  // groups order chunks; with one there is nothing to order
  const int group = std::min(group_size, std::max(microbatches, stages));
  const int whole = rounded_up(microbatches, stages, group);
  const auto order = visits(chunks, whole, group);
  const bool in_order = together && whole == microbatches;
  PipelineSchedule result{placement, microbatches};
  for (int rank = 0; rank < stages; ++rank) {
    // Twice the distance to the end, so that gradients of the next chunk arrive while the last chunk still forwards.
    const int warmup = 2 * (stages - 1 - rank) + (chunks - 1) * group + (together ? 1 : 0);
    result.ranks.push_back(alternate(order, chunks, warmup, in_order));
    std::erase_if(result.ranks.back(), [&](const Action& action) { return action.microbatch >= microbatches; });
  }
  return together && !in_order ? pair_up(std::move(result)) : result;
}

PipelineSchedule forward_only(const Placement& placement, int microbatches) {
  require_shape(placement, microbatches);
  PipelineSchedule result{placement, microbatches, /*backward=*/false};
  for (int rank = 0; rank < placement.stages; ++rank)
    result.ranks.push_back(placement.kind == PlacementKind::v ? forward_v(placement.stages - rank, microbatches)
                                                              : forward_loop(placement, microbatches));
  return result;
}

PipelineSchedule forward_only(int stages, int chunks, int microbatches) {
  return forward_only(Placement{stages, chunks}, microbatches);
}

}  // namespace tera
