#pragma once
// Plays one rank of a pipeline over its chunks of blocks. It owns the three rules that blocks rely on: x until B, dy
// until W, scratch until the end of the call. Results do not depend on the schedule: on each chunk F, B and W come in
// the order of microbatches.
//
// Where the plan says so, an F and a B are played together: block by block, and where both blocks are in parts
// (nn/parts.h) part by part, so that rows of one are on their way to other ranks while the other computes:
//
//   B    send dout |      | back, down |      | back, up; send |         | router, attention; W |
//   F              | attention, router |  send rows            | experts; send back             | y
//
// Nothing is allocated while it plays. A rehearsal is the same code with PlanOps, measuring arenas, and a Comm that
// moves nothing.

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "tera/nn/parts.h"
#include "tera/pipeline/borders.h"
#include "tera/pipeline/offload.h"
#include "tera/pipeline/stage.h"
#include "tera/pipeline/stage_memory.h"

namespace tera {

// Told of every call of a block: to have sharded weights there in time and to let go of them, and to know when
// gradients are complete. Blocks are numbered over all of the rank's chunks, one after the other. Does nothing itself.
struct ParamWatch {
  virtual ~ParamWatch() = default;
  // BW is one pair of calls around both. next_block: which one comes after this, whatever its action; -1: none.
  virtual void before(int /*block*/, Act /*act*/, int /*next_block*/) {}
  // last: the gradients of this block are complete for this step.
  virtual void after(int /*block*/, Act /*act*/, bool /*last*/) {}
};

class Pipeline {
 public:
  // All three outlive it.
  Pipeline(Ops& ops, const Stage& stage, StageMemory& memory);

  // Plays the training plan for so many microbatches, or the evaluation plan, which keeps nothing: as many microbatches
  // as the plan has, each with all its inputs on every rank.
  void step(std::span<const MicroBatch> batch, ParamWatch& watch);
  void step(std::span<const MicroBatch> batch);
  void forward(std::span<const MicroBatch> batch, ParamWatch& watch);
  void forward(std::span<const MicroBatch> batch);

 private:
  struct Flight {  // one microbatch between its F and its W
    Arena *f_to_b = nullptr, *f_to_w = nullptr, *b_to_w = nullptr;
    Offload::Host host{};
    std::vector<std::unique_ptr<Saved>> saved;  // per block, as are the next three
    std::vector<Tensor> x, dy;
    std::vector<Offload::Parcel> parcels;
  };
  struct Chunk {
    ChunkBlocks blocks;
    std::vector<InParts*> in_parts;  // the same blocks, or none
    ChunkMemory& memory;
    int first_block = 0;  // number in the rank
    std::vector<Flight> flights;
  };
  struct Playing {
    const StagePlan* plan = nullptr;
    ParamWatch* watch = nullptr;
    std::size_t action = 0;
  };

  // An F, B or BW on its way through the blocks of its chunk.
  struct Pass {
    Chunk& chunk;
    const Action& action;
    const MicroBatch& mb;
    Flight& flight;
    Stash stash;
    Tensor result;         // of the last block that is played
    std::size_t left = 0;  // blocks to be played
    std::size_t mark = 0;  // of b_to_w, in BW: what a block puts there is for itself
    bool forward() const { return action.act == Act::F; }
    std::size_t block() const { return forward() ? chunk.blocks.size() - left : left - 1; }
    InParts* in_parts() const { return chunk.in_parts[block()]; }
  };

  void play(const StagePlan& plan, std::span<const MicroBatch> batch, ParamWatch& watch);
  void play(const Action& action, const MicroBatch& mb);
  void hand_through(const Action& action);
  void play_w(Chunk& chunk, const Action& action, const MicroBatch& mb);
  void play_forward(Chunk& chunk, const Action& action, const MicroBatch& mb);
  void play_pair(const Action& f, const MicroBatch& f_mb, const Action& b, const MicroBatch& b_mb);

  Pass begin_f(Chunk& chunk, const Action& action, const MicroBatch& mb);
  Pass begin_b(Chunk& chunk, const Action& action, const MicroBatch& mb);
  Run run_of(Pass& pass, Arena& scratch);
  struct Call {  // of a block
    Chunk* chunk = nullptr;
    std::size_t block = 0;
    const Action* action = nullptr;
  };
  void play_block(Pass& pass, const Call& next);
  void forward_block(Pass& pass);
  void backward_block(Pass& pass);
  void play_together(Pass& f, Pass& b, const Call& next);
  Tensor output_of(const Pass& pass);
  void end_b(Pass& pass);

  // A call of one block, between those of the watch.
  template <class Work>
  void visit(const Call& call, const Call& next, const Work& work);
  void tell_before(const Call& call, const Call& next);
  void tell_after(const Call& call);
  static Call call_of(const Pass& pass);
  Call next_call(const Call& call);     // whatever its action; none: this is the last one
  Call first_call(std::size_t action);  // from this action on
  void bring_ahead(const Call& call);
  void block_b(Pass& pass, Run& run);
  void block_w(Chunk& chunk, std::size_t block, Flight& flight, Run& run);

  static Flight& flight_of(Chunk& chunk, int microbatch);
  static Arena* take(std::vector<Arena>& pool, int microbatch);
  static void give_back(Arena*& arena);
  Stash stash_of(const Flight& flight);
  void take_host(Chunk& chunk, Flight& flight, int microbatch);
  void give_back_host(Flight& flight, Act act);

  Ops& ops_;
  const Stage& stage_;
  StageMemory& memory_;
  Borders borders_;
  Offload offload_;
  std::array<Offload::Parcel, offload_buffers> unkept_;  // of blocks in evaluation
  std::vector<Chunk> chunks_;
  Playing now_;
};

}  // namespace tera
