#include "tera/pipeline/schedules.h"

#include <algorithm>

#include "tera/base/error.h"

namespace tera {
namespace {

struct Visit {
  int chunk, microbatch;
};

// The order of every rank's forwards: group after group, in each group chunk after chunk.
std::vector<Visit> visits(int chunks, int microbatches, int group_size) {
  std::vector<Visit> order;
  for (int begin = 0; begin < microbatches; begin += group_size)
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int i = begin; i < std::min(begin + group_size, microbatches); ++i) order.push_back({chunk, i});
  return order;
}

// 1F1B after `warmup` forwards: forwards in the order of visits, backwards in that order with the chunks reversed.
Schedule alternate(const std::vector<Visit>& order, int chunks, int warmup, bool together) {
  const std::size_t total = order.size(), lead = std::min<std::size_t>(static_cast<std::size_t>(warmup), total);
  Schedule schedule;
  schedule.reserve(2 * total);
  const auto forward = [&](const Visit& v) { schedule.push_back({Act::F, v.microbatch, v.chunk}); };
  for (std::size_t i = 0; i < lead; ++i) forward(order[i]);
  for (std::size_t i = 0; i < total; ++i) {
    if (i + lead < total) {
      forward(order[i + lead]);
      schedule.back().with_next = together;
    }
    schedule.push_back({Act::BW, order[i].microbatch, chunks - 1 - order[i].chunk});
  }
  return schedule;
}

// The fewest microbatches, at least this many, whose last group is full or has one for each stage.
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

// Chunk 0 leads chunk 1 by `lead` microbatches: the first one returns through the V when these are done.
Schedule forward_v(int lead, int microbatches) {
  Schedule schedule;
  for (int i = 0; i < microbatches + lead; ++i) {
    if (i >= lead) schedule.push_back({Act::F, i - lead, 1});
    if (i < microbatches) schedule.push_back({Act::F, i, 0});
  }
  return schedule;
}

}  // namespace

void require_shape(const Placement& placement, int microbatches) {
  require_valid(placement);
  require_user(microbatches >= 1, "a pipeline needs at least one microbatch per step, not {}", microbatches);
  constexpr std::int64_t max_steps = 1 << 24;
  require_user(std::int64_t{microbatches} * placement.virtual_stages() <= max_steps,
               "{} microbatches on {} virtual stages are more than the {} steps a schedule may have", microbatches,
               placement.virtual_stages(), max_steps);
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
    const int distance = stages - 1 - rank;
    result.ranks.push_back(alternate(order, 1, together ? 2 * distance + 1 : distance, together));
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
  const int rounded = rounded_up(microbatches, stages, group);
  const auto order = visits(chunks, rounded, group);
  const bool in_order = together && rounded == microbatches;
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
