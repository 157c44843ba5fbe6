#pragma once
// Virtual pipeline stages: which rank has which model chunk. All chunks of a pipeline, in the order of forward, are its
// virtual stages 0, 1, 2 ...; a rank numbers its own chunks from 0 in the same order.

#include <cstdint>

#include "tera/base/error.h"

namespace tera {

enum class PlacementKind : std::uint8_t {
  loop,  // interleaved: virtual stage i is on rank i mod stages
  v,     // V-shaped (ZB-V): two chunks per rank; rank r has r and 2*stages-1-r
};

struct Placement {
  int stages = 1;  // ranks of the pipeline
  int chunks = 1;  // per rank
  PlacementKind kind = PlacementKind::loop;

  int virtual_stages() const { return stages * chunks; }
  int rank_of(int virtual_stage) const {
    const bool returns = kind == PlacementKind::v && virtual_stage >= stages;
    return returns ? 2 * stages - 1 - virtual_stage : virtual_stage % stages;
  }
  int chunk_of(int virtual_stage) const { return virtual_stage / stages; }
  int virtual_stage(int rank, int chunk) const {
    const bool returns = kind == PlacementKind::v && chunk == 1;
    return returns ? 2 * stages - 1 - rank : chunk * stages + rank;
  }
  bool operator==(const Placement&) const = default;
};

inline void require_valid(const Placement& placement) {
  constexpr int max_stages = 65536;
  const auto [stages, chunks, kind] = placement;
  require_user(stages >= 1 && chunks >= 1 && stages <= max_stages && chunks <= max_stages / stages,
               "a pipeline of {} stages x {} virtual stages: each must be at least 1, and their product at most {}",
               stages, chunks, max_stages);
  require_user(kind == PlacementKind::loop || chunks == 2,
               "a pipeline in a V has 2 virtual stages per rank, not {} (dist.virtual_pipeline_model_parallel_size)",
               chunks);
}

}  // namespace tera
