#pragma once
// A rank's pipeline stage: its blocks, chunk after chunk, and the plans that the engine executes.

#include <memory>
#include <span>
#include <vector>

#include "tera/comm/comm.h"
#include "tera/nn/block.h"
#include "tera/nn/offload_tags.h"
#include "tera/pipeline/stage_plan.h"

namespace tera {

// Consecutive blocks of one virtual stage; none where the layers run out (its input is then passed through).
using ChunkBlocks = std::span<const std::unique_ptr<Block>>;

struct Stage {
  std::vector<ChunkBlocks> chunks;
  StagePlan training{};              // without actions for inference
  std::vector<StagePlan> smaller{};  // training plans for steps of fewer microbatches, where there are such
  StagePlan evaluation{};            // forward only

  // Between blocks, and so between ranks, activations are [T/row_shards,hidden] of this dtype.
  std::int64_t hidden = 0;
  DType dtype = DType::f32;
  int row_shards = 1;

  Comm* pp = nullptr;  // the ranks of the pipeline; null for a single one
  // Whether computation overlaps sends. Without, a rank waits after each action until its result has been sent;
  // receives are posted early in any case, and only the action that needs them waits.
  bool overlap_p2p = true;

  template <class See>
  void for_each_plan(const See& see) const {
    see(training);
    for (const StagePlan& plan : smaller) see(plan);
    see(evaluation);
  }
  const StagePlan& training_of(std::size_t microbatches) const;
  bool overlaps_pairs() const;  // an F with a B, in some plan

  // In BW, blocks may do parts of W inside B, to overlap tensor-parallel reductions (Run::w_in_b).
  bool w_in_b = false;

  OffloadTags offload{};  // activations that are offloaded to the host in training
};

}  // namespace tera
