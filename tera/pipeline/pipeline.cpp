#include "tera/pipeline/pipeline.h"

#include <algorithm>

#include "tera/base/error.h"

namespace tera {

StageMemory StageMemory::measuring(const Pools& pools) {
  StageMemory memory;
  for (int i = 0; i < pools.f_to_b; ++i) memory.f_to_b.push_back(Arena::measuring());
  for (int i = 0; i < pools.f_to_w; ++i) memory.f_to_w.push_back(Arena::measuring());
  for (int i = 0; i < pools.b_to_w; ++i) memory.b_to_w.push_back(Arena::measuring());
  memory.replay = std::make_unique<Arena>(Arena::measuring());
  memory.scratch = std::make_unique<Arena>(Arena::measuring());
  return memory;
}

StageMemory StageMemory::allocate_on(Device& device) const {
  StageMemory memory;
  const auto real = [&](const Arena& measured, std::string_view name) {
    return Arena(device.allocate(measured.peak()), name, device.is_host());
  };
  for (const auto& arena : f_to_b) memory.f_to_b.push_back(real(arena, "activations, F to B"));
  for (const auto& arena : f_to_w) memory.f_to_w.push_back(real(arena, "activations, F to W"));
  for (const auto& arena : b_to_w) memory.b_to_w.push_back(real(arena, "activations, B to W"));
  memory.replay = std::make_unique<Arena>(real(*replay, "recompute"));
  memory.scratch = std::make_unique<Arena>(real(*scratch, "scratch"));
  return memory;
}

Pipeline::Pipeline(Ops& ops, std::span<const std::unique_ptr<Block>> blocks, std::int64_t hidden, DType dtype,
                   StageMemory& memory)
    : ops_(ops), blocks_(blocks), hidden_(hidden), dtype_(dtype), memory_(memory) {
  const auto fill = [](Pool& pool, std::deque<Arena>& arenas) {
    for (auto& arena : arenas) pool.push_back(&arena);
  };
  fill(free_f_to_b_, memory.f_to_b);
  fill(free_f_to_w_, memory.f_to_w);
  fill(free_b_to_w_, memory.b_to_w);
  flights_.resize(std::max<std::size_t>(memory.f_to_w.size(), 1));
  for (auto& flight : flights_) {
    for (const auto& block : blocks_) flight.saved.push_back(block->make_saved());
    flight.x.resize(blocks_.size());
    flight.dy.resize(blocks_.size());
  }
}

void Pipeline::step(std::span<const Action> schedule, std::span<const MicroBatch> batch, GradSink& grads) {
  int finished = 0;
  for (const auto& action : schedule) {
    const MicroBatch& mb = batch[static_cast<std::size_t>(action.microbatch)];
    Flight& flight = flight_of(action.act == Act::F ? -1 : action.microbatch);
    flight.microbatch = action.microbatch;
    const bool ends = action.act == Act::W || action.act == Act::BW;
    finished += ends ? 1 : 0;
    GradSink* sink = ends && finished == static_cast<int>(batch.size()) ? &grads : nullptr;
    switch (action.act) {
      case Act::F: play_f(flight, mb); break;
      case Act::B: play_b(flight, mb); break;
      case Act::W: play_w(flight, mb, sink); break;
      case Act::BW: play_bw(flight, mb, sink); break;
    }
  }
}

void Pipeline::step(std::span<const Action> schedule, std::span<const MicroBatch> batch) {
  struct NoSink final : GradSink {
    void block_ready(int) override {}
  } nobody;
  step(schedule, batch, nobody);
}

// The flight of a microbatch; -1 finds a free one.
Pipeline::Flight& Pipeline::flight_of(int microbatch) {
  for (auto& flight : flights_)
    if (flight.microbatch == microbatch) return flight;
  fail("the schedule has more microbatches in flight than the {} it was checked for", flights_.size());
}

Arena* Pipeline::take(Pool& pool) {
  require(!pool.empty(), "the schedule needs more memory than the pools it was checked for");
  Arena* arena = pool.back();
  pool.pop_back();
  return arena;
}

void Pipeline::give_back(Pool& pool, Arena*& arena) {
  arena->rewind(0);
  pool.push_back(arena);  // never grows beyond its first size
  arena = nullptr;
}

Stash Pipeline::stash_of(const Flight& flight) {
  // What an action may not use points at replay, which is there in every action.
  const auto or_replay = [&](Arena* arena) -> Arena& { return arena ? *arena : *memory_.replay; };
  return {or_replay(flight.f_to_b), or_replay(flight.f_to_w), or_replay(flight.b_to_w), *memory_.replay};
}

Shape Pipeline::border_shape(const MicroBatch& mb) const { return shape(mb.tokens.dim(0), hidden_); }

void Pipeline::play_f(Flight& flight, const MicroBatch& mb) {
  flight.f_to_b = take(free_f_to_b_);
  flight.f_to_w = take(free_f_to_w_);
  Stash stash = stash_of(flight);
  Run run{ops_, stash, *memory_.scratch, mb};
  Tensor x;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const bool last = i + 1 == blocks_.size();
    const Tensor y = last ? Tensor{} : flight.f_to_b->take(border_shape(mb), dtype_, "border.x");
    ScratchScope scope(*memory_.scratch);
    flight.x[i] = x;
    blocks_[i]->forward(run, *flight.saved[i], x, y);
    x = y;
  }
}

void Pipeline::block_b(std::size_t block, Flight& flight, Run& run) {
  ScratchScope scope(*memory_.scratch);
  const Tensor dx = block == 0 ? Tensor{} : flight.dy[block - 1];
  blocks_[block]->backward_input(run, *flight.saved[block], flight.x[block], flight.dy[block], dx);
}

void Pipeline::block_w(std::size_t block, Flight& flight, Run& run, GradSink* grads) {
  ScratchScope scope(*memory_.scratch);
  blocks_[block]->backward_weight(run, *flight.saved[block], flight.dy[block]);
  if (grads) grads->block_ready(static_cast<int>(block));
}

void Pipeline::play_b(Flight& flight, const MicroBatch& mb) {
  flight.b_to_w = take(free_b_to_w_);
  Stash stash = stash_of(flight);
  Run run{ops_, stash, *memory_.scratch, mb};
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    if (i > 0) flight.dy[i - 1] = flight.b_to_w->take(border_shape(mb), dtype_, "border.dy");
    block_b(i, flight, run);
  }
  give_back(free_f_to_b_, flight.f_to_b);
}

void Pipeline::play_w(Flight& flight, const MicroBatch& mb, GradSink* grads) {
  Stash stash = stash_of(flight);
  Run run{ops_, stash, *memory_.scratch, mb};
  for (std::size_t i = blocks_.size(); i-- > 0;) block_w(i, flight, run, grads);
  give_back(free_f_to_w_, flight.f_to_w);
  give_back(free_b_to_w_, flight.b_to_w);
  flight.microbatch = -1;
}

// With B and W of a block back to back, dy needs two buffers in all, and what waits for W only one block's.
void Pipeline::play_bw(Flight& flight, const MicroBatch& mb, GradSink* grads) {
  flight.b_to_w = take(free_b_to_w_);
  Stash stash = stash_of(flight);
  Run run{ops_, stash, *memory_.scratch, mb};
  const std::array<Tensor, 2> dy{flight.b_to_w->take(border_shape(mb), dtype_, "border.dy"),
                                 flight.b_to_w->take(border_shape(mb), dtype_, "border.dy")};
  const std::size_t mark = flight.b_to_w->mark();
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    if (i > 0) flight.dy[i - 1] = dy[i % 2];
    block_b(i, flight, run);
    block_w(i, flight, run, grads);
    flight.b_to_w->rewind(mark);
  }
  give_back(free_f_to_b_, flight.f_to_b);
  give_back(free_f_to_w_, flight.f_to_w);
  give_back(free_b_to_w_, flight.b_to_w);
  flight.microbatch = -1;
}

void Pipeline::forward(const MicroBatch& mb) {
  Flight& flight = flight_of(-1);
  Arena* arena = take(free_f_to_b_);
  Stash stash(*arena, *arena, *arena, *memory_.replay);
  Run run{ops_, stash, *memory_.scratch, mb};
  const std::array<Tensor, 2> border{arena->take(border_shape(mb), dtype_, "border.x"),
                                     arena->take(border_shape(mb), dtype_, "border.x")};
  const std::size_t mark = arena->mark();
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    ScratchScope scope(*memory_.scratch);
    const bool first = i == 0, last = i + 1 == blocks_.size();
    blocks_[i]->forward(run, *flight.saved[i], first ? Tensor{} : border[(i + 1) % 2], last ? Tensor{} : border[i % 2]);
    arena->rewind(mark);
  }
  give_back(free_f_to_b_, arena);
}

}  // namespace tera
