#pragma once
// A rank's part of a pipeline: its blocks, chunk after chunk, and the plans by which they are played.

#include <memory>
#include <span>
#include <vector>

#include "tera/comm/comm.h"
#include "tera/nn/block.h"
#include "tera/nn/offload_tags.h"
#include "tera/pipeline/stage_plan.h"

namespace tera {

// Consecutive blocks of one virtual stage; none where the layers run out (it then hands through what it gets).
using ChunkBlocks = std::span<const std::unique_ptr<Block>>;

struct Stage {
  std::vector<ChunkBlocks> chunks;
  StagePlan training{};              // without actions where only forward passes are played
  std::vector<StagePlan> smaller{};  // the same for steps of fewer microbatches, where there are such
  StagePlan evaluation{};            // forward only

  // Between blocks, and so between ranks, activations are [T/row_shards,hidden] of this dtype.
  std::int64_t hidden = 0;
  DType dtype = DType::f32;
  int row_shards = 1;

  Comm* pp = nullptr;  // the ranks of the pipeline; not needed for a single one
  // Whether computing goes on while a result is on its way. Without, a rank waits after each action until its result
  // has been taken; receives are posted early in any case, and only waited for by the action that needs them.
  bool overlap_p2p = true;

  template <class See>
  void for_each_plan(const See& see) const {
    see(training);
    for (const StagePlan& plan : smaller) see(plan);
    see(evaluation);
  }
  const StagePlan& training_of(std::size_t microbatches) const;
  bool plays_pairs() const;  // an F together with a B, in some plan

  // In BW, blocks may play parts of W inside B, while sums over tensor-parallel ranks are on their way (Run::w_in_b).
  bool w_in_b = false;

  OffloadTags offload{};  // what waits on the host in training
};

}  // namespace tera
