#pragma once
#include <span>

#include "tera/ops/ops.h"
#include "tera/tensor/stash.h"

namespace tera {

// Keys and values of tokens already seen, for generation: one sequence, one entry per layer.
struct KvCache {
  struct Layer {
    Tensor k, v;  // [capacity,G,D]
  };
  std::span<Layer> layers;
  std::int64_t past = 0;  // rows filled
};

// Losses that are there for the experts' sake, in the order of the sums that a step keeps of them.
enum class AuxLoss : int { balance, sequence_balance, global_balance, z, count };

// What a layer that predicts further ahead reads in place of the microbatch's own, and writes.
struct RowsAhead {
  Tensor tokens, targets;  // i32 [T]: each row's, so many tokens further on
  Tensor token_loss;       // f32 [T]
  Tensor loss_scale;       // f32 [1]
};

// All rows of a microbatch, where each of several context-parallel ranks has some: K = cp T of them. Nothing where one
// rank has all.
struct AllRows {
  Tensor rows;                 // i64 [K]: global ids, for random draws in attention; only where it draws
  Tensor places;               // i32 [K]: of each row, its place when the ranks' own rows lie one after the other
  Tensor at_places;            // i32 [K]: of each such place, the row
  Tensor positions;            // i32 [K]: of each row, how far it stands from the begin of its document
  Tensor at_places_positions;  // i32 [K]: the same of each place
  Tensor at_places_rows;       // i64 [K]: the ids likewise
  Tensor at_places_offsets;    // i32 [cp (documents+1)]: of each rank's own rows; with packed documents
};

struct ContextParallel;

// What one microbatch brings along. T rows: `batch` sequences of equal length, one after the other, unless offsets cut
// them into documents.
struct MicroBatch {
  Tensor tokens, targets, positions;  // i32 [T]; targets: negative where not counted, none when there is no loss
  Tensor rows;                        // i64 [T]: global ids of the rows, for random draws
  Tensor offsets;                     // i32 [documents+1], optional; of all rows, where ranks share them
  std::int64_t batch = 1;
  AllRows all{};
  const ContextParallel* cp = nullptr;  // the ranks that share its rows, where not every microbatch has the same
  Tensor token_loss;                    // f32 [T], written by the head
  Tensor loss_scale;                    // f32 [1]: what a token's loss counts in the gradient
  Tensor aux_scale;  // f32 [1]: and what an auxiliary loss of the microbatch does; only some models need it
  // What a training step learns of its routers, none where nobody asks. B adds to both: unlike F it is played once.
  Tensor expert_counts;  // i32 [layers with experts,E]: how many rows chose an expert, over all microbatches
  Tensor aux_losses;     // f32 [AuxLoss::count]: sums over layers and microbatches; of z, over rows too
  Tensor logits;         // f32 [rows,V], optional: the head writes the logits of the last rows there
  // i32 [1], optional: the most rows of a layer's experts that found no room here; without it there is room for all.
  Tensor expert_overflow;
  std::span<std::int32_t> expert_offsets{};  // host memory that the device writes, for rows that travel to experts
  std::span<const RowsAhead> ahead{};        // by depth, where layers predict further ahead; for training alone
  bool training = true;                      // dropout and gradients
  KvCache* cache = nullptr;                  // generation only
};

// What a call of a block works with; references only, cheap to rebuild.
struct Run {
  Ops& ops;
  Stash& stash;
  Arena& scratch;
  const MicroBatch& mb;
  bool w_follows = false;  // B and W of the block are played back to back: what B made for W lives for a moment only
  bool w_in_b = false;     // and B may do a part of W while sums of other ranks are on their way
};

}  // namespace tera
