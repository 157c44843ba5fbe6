#pragma once
// The pipeline engine: executes one rank's plan of a pipeline schedule over its chunks of blocks. It owns the three
// rules that blocks rely on: x until B, dy until W, scratch until the end of the call. Results do not depend on the
// schedule: on each chunk F, B and W come in the order of microbatches.
//
// Where the plan says so, the F of one microbatch and the B of another overlap (combined 1F1B): block by block, and
// where both blocks have phases (nn/phased.h) phase by phase, so that all-to-alls of one are in flight while the other
// computes:
//
//   B    dispatch dout |             | back, down |      | back, up; combine |         | router, attention; W |
//   F                  | attention, router |  dispatch rows                  | experts; combine               | y
//
// Nothing is allocated during execution. A rehearsal is the same code with PlanOps, measuring arenas, and a Comm that
// moves nothing.

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "tera/nn/phased.h"
#include "tera/pipeline/offload.h"
#include "tera/pipeline/stage.h"
#include "tera/pipeline/stage_boundary.h"
#include "tera/pipeline/stage_memory.h"

namespace tera {

// Hooks around every call of a block: to gather sharded weights in time and release them (ZeRO-3), and to know when
// gradients are complete. Blocks are numbered over all of the rank's chunks, one after the other. These do nothing.
struct ParamHooks {
  virtual ~ParamHooks() = default;
  // BW is one pair of calls around both. next_block: the block of the next call, whatever its action; -1: none.
  virtual void before(int /*block*/, Act /*act*/, int /*next_block*/) {}
  // last: the gradients of this block are complete for this step.
  virtual void after(int /*block*/, Act /*act*/, bool /*last*/) {}
};

class Pipeline {
 public:
  // All three outlive it.
  Pipeline(Ops& ops, const Stage& stage, StageMemory& memory);

  // step() executes the training plan for so many microbatches (gradient accumulation), forward() the evaluation plan,
  // which keeps nothing; each microbatch has all its inputs on every rank.
  void step(std::span<const MicroBatch> batch, ParamHooks& hooks);
  void step(std::span<const MicroBatch> batch);
  void forward(std::span<const MicroBatch> batch, ParamHooks& hooks);
  void forward(std::span<const MicroBatch> batch);

 private:
  struct MicrobatchState {  // state of one microbatch in flight, between its F and its W
    Arena *f_to_b = nullptr, *f_to_w = nullptr, *b_to_w = nullptr;
    Offload::Host host{};
    std::vector<std::unique_ptr<Saved>> saved;  // per block, as are the next three
    std::vector<Tensor> x, dy;
    std::vector<Offload::OffloadSlot> slots;
  };
  struct Chunk {
    ChunkBlocks blocks;
    std::vector<Phased*> phased;  // blocks that have phases; null for the others
    ChunkMemory& memory;
    int first_block = 0;  // number in the rank
    std::vector<MicrobatchState> microbatch_states;
  };
  struct Current {
    const StagePlan* plan = nullptr;
    ParamHooks* hooks = nullptr;
    std::size_t action = 0;
  };

  // State of an F, B or BW while it goes through the blocks of its chunk.
  struct Pass {
    Chunk& chunk;
    const Action& action;
    const MicroBatch& mb;
    MicrobatchState& state;
    Stash stash;
    Tensor result;         // output of the last block
    std::size_t left = 0;  // blocks that have not run
    std::size_t mark = 0;  // position in b_to_w: in BW a block's memory beyond it is freed after its W
    bool forward() const { return action.act == Act::F; }
    std::size_t block() const { return forward() ? chunk.blocks.size() - left : left - 1; }
    Phased* phased() const { return chunk.phased[block()]; }
  };

  void execute(const StagePlan& plan, std::span<const MicroBatch> batch, ParamHooks& hooks);
  void execute(const Action& action, const MicroBatch& mb);
  void pass_through(const Action& action);
  void execute_w(Chunk& chunk, const Action& action, const MicroBatch& mb);
  void execute_forward_only(Chunk& chunk, const Action& action, const MicroBatch& mb);
  void execute_pair(const Action& f, const MicroBatch& f_mb, const Action& b, const MicroBatch& b_mb);

  Pass begin_f(Chunk& chunk, const Action& action, const MicroBatch& mb);
  Pass begin_b(Chunk& chunk, const Action& action, const MicroBatch& mb);
  Run run_of(Pass& pass, Arena& scratch);
  struct Call {  // call of one block
    Chunk* chunk = nullptr;
    std::size_t block = 0;
    const Action* action = nullptr;
  };
  void run_block(Pass& pass, const Call& next);
  void forward_block(Pass& pass);
  void backward_block(Pass& pass);
  void run_overlapped(Pass& f, Pass& b, const Call& next);
  Tensor output_of(const Pass& pass);
  void end_b(Pass& pass);

  // Runs a call of one block between the hooks.
  template <class Work>
  void visit(const Call& call, const Call& next, const Work& work);
  void notify_before(const Call& call, const Call& next);
  void notify_after(const Call& call);
  static Call call_of(const Pass& pass);
  Call next_call(const Call& call);     // next call of any action; empty: there is none
  Call first_call(std::size_t action);  // first call of this action or a later one
  void prefetch(const Call& call);
  void block_b(Pass& pass, Run& run);
  void block_w(Chunk& chunk, std::size_t block, MicrobatchState& state, Run& run);

  static MicrobatchState& microbatch_state_of(Chunk& chunk, int microbatch);
  static Arena* take(std::vector<Arena>& pool, int microbatch);
  static void give_back(Arena*& arena);
  Stash stash_of(const MicrobatchState& state);
  void take_host(Chunk& chunk, MicrobatchState& state, int microbatch);
  void give_back_host(MicrobatchState& state, Act act);

  Ops& ops_;
  const Stage& stage_;
  StageMemory& memory_;
  StageBoundary boundary_;
  Offload offload_;
  std::array<Offload::OffloadSlot, offload_buffers> unkept_;  // for evaluation, which keeps nothing on the host
  std::vector<Chunk> chunks_;
  Current now_;
};

}  // namespace tera
