#pragma once
#include <span>

#include "tera/ops/ops.h"
#include "tera/tensor/stash.h"

namespace tera {

// KV cache for generation: keys and values of tokens already seen, one sequence, one entry per layer.
struct KvCache {
  struct Layer {
    Tensor k, v;  // [capacity,G,D]
  };
  std::span<Layer> layers;
  std::int64_t past = 0;  // rows filled
};

// Auxiliary losses of MoE routers, in the order of the sums that a step keeps of them.
enum class AuxLoss : int { balance, sequence_balance, global_balance, z, count };

// Multi-token prediction: the inputs and losses of one depth, in place of the microbatch's own.
struct MtpRows {
  Tensor tokens, targets;  // i32 [T]: each row's, shifted by the depth
  Tensor token_loss;       // f32 [T]
  Tensor loss_scale;       // f32 [1]
};

// All K = cp T rows of a microbatch that is split over context-parallel ranks; empty with one rank. "cp order": the
// ranks' local rows one after the other, as collectives concatenate them.
struct GlobalRows {
  Tensor rows;                // i64 [K]: global ids, for random draws in attention; only where it draws
  Tensor cp_order;            // i32 [K]: the index of each row in cp order
  Tensor cp_order_rows;       // i32 [K]: the inverse, the row at each index in cp order
  Tensor positions;           // i32 [K]: the position of each row in its document
  Tensor cp_order_positions;  // i32 [K]: positions in cp order
  Tensor cp_order_row_ids;    // i64 [K]: rows' global ids in cp order
  Tensor cp_order_offsets;    // i32 [cp (documents+1)]: of each rank's local rows; with packed documents
};

struct ContextParallel;

// The inputs and outputs of one microbatch. T rows: `batch` sequences of equal length, one after the other, unless
// offsets divide them into documents.
struct MicroBatch {
  Tensor tokens, targets, positions;  // i32 [T]; targets: negative where not counted, none when there is no loss
  Tensor rows;                        // i64 [T]: global ids of the rows, for random draws
  Tensor offsets;                     // i32 [documents+1], optional; of all K rows with context parallelism
  Tensor mtp_tokens, mtp_targets;     // i32 [depths,T], optional: cut up by depth in `mtp`
  std::int64_t batch = 1;
  GlobalRows all{};
  const ContextParallel* cp = nullptr;  // its context-parallel group, where microbatches differ (dynamic CP)
  Tensor token_loss;                    // f32 [T], written by the head
  Tensor loss_scale;                    // f32 [1]: what a token's loss counts in the gradient
  Tensor aux_scale;  // f32 [1]: what an auxiliary loss of the microbatch counts; only some models need it
  // Router statistics of a training step, optional. B adds to both: unlike F, which may be recomputed, it runs once.
  Tensor expert_counts;  // i32 [layers with experts,E]: how many rows chose an expert, over all microbatches
  Tensor aux_losses;     // f32 [AuxLoss::count]: sums over layers and microbatches; of z, over rows too
  Tensor logits;         // f32 [rows,V], optional: the head writes the logits of the last rows there
  // i32 [1], optional: rows by which experts exceeded their capacity here, the maximum over layers; without it the
  // capacity is the worst case.
  Tensor expert_overflow;
  std::span<std::int32_t> expert_offsets{};  // host memory that the device writes, for all-to-all dispatch
  std::span<const MtpRows> mtp{};            // by depth, in training with multi-token prediction
  bool training = true;                      // dropout and gradients
  KvCache* cache = nullptr;                  // generation only
};

// The context of a block's call; references only, cheap to rebuild.
struct Run {
  Ops& ops;
  Stash& stash;
  Arena& scratch;
  const MicroBatch& mb;
  bool w_follows = false;  // W of the block runs right after its B: what B keeps for W is short-lived
  bool w_in_b = false;     // B may do a part of W to overlap its reductions over ranks; only with w_follows
};

}  // namespace tera
