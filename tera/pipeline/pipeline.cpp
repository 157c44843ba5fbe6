#include "tera/pipeline/pipeline.h"

#include <algorithm>
#include <array>

#include "tera/base/error.h"

namespace tera {
namespace {

void check_plan(const Stage& stage, const StagePlan& plan) {
  const Placement& placement = plan.placement;
  require(plan.chunks.size() == stage.chunks.size(), "a plan for {} chunks, and blocks of {}", plan.chunks.size(),
          stage.chunks.size());
  for (int chunk = 0; chunk < placement.chunks; ++chunk) {
    const int place = placement.virtual_stage(plan.rank, chunk);
    const bool at_end = place == 0 || place + 1 == placement.virtual_stages();
    require(!at_end || !stage.chunks[static_cast<std::size_t>(chunk)].empty(),
            "virtual stage {} of {} has no blocks; the first and the last need some", place,
            placement.virtual_stages());
  }
  if (placement.stages == 1) return;
  require(stage.pp && stage.pp->size() == placement.stages && stage.pp->rank() == plan.rank,
          "a plan for rank {} of {} in a pipeline needs the group of these", plan.rank, placement.stages);
}

// Inner borders of n blocks, when each is needed for one block only: two in turn are enough.
class TwoBorders {
 public:
  TwoBorders(Arena& arena, std::size_t blocks, const Shape& border, DType dtype, std::string_view tag) {
    for (std::size_t i = 0; i < std::min<std::size_t>(2, blocks - 1); ++i) borders_[i] = arena.take(border, dtype, tag);
  }
  const Tensor& behind(std::size_t block) const { return borders_[block % 2]; }

 private:
  std::array<Tensor, 2> borders_;
};

}  // namespace

const StagePlan& Stage::training_of(std::size_t microbatches) const {
  for (const StagePlan& plan : smaller)
    if (static_cast<std::size_t>(plan.microbatches) == microbatches) return plan;
  return training;
}

Pipeline::Pipeline(Ops& ops, const Stage& stage, StageMemory& memory)
    : ops_(ops),
      stage_(stage),
      memory_(memory),
      borders_(ops, stage, *memory.buffers),
      offload_(ops, stage.offload, memory.offload) {
  stage.for_each_plan([&](const StagePlan& plan) {
    if (!plan.actions.empty()) check_plan(stage, plan);
  });
  int blocks = 0;
  for (std::size_t i = 0; i < stage.chunks.size(); ++i) {
    Chunk chunk{.blocks = stage.chunks[i], .memory = memory.chunks[i], .first_block = blocks, .flights = {}};
    chunk.flights.resize(std::max<std::size_t>(chunk.memory.f_to_w.size(), 1));
    for (std::size_t f = 0; f < chunk.flights.size(); ++f) {
      Flight& flight = chunk.flights[f];
      for (const auto& block : chunk.blocks) flight.saved.push_back(block->make_saved());
      flight.x.resize(chunk.blocks.size());
      flight.dy.resize(chunk.blocks.size());
      // In most schedules the B after an F is that of the next flight: its parcel then comes into the other buffer.
      for (std::size_t b = 0; b < chunk.blocks.size(); ++b) flight.parcels.push_back({.turn = b + f, .on_host = {}});
    }
    blocks += static_cast<int>(chunk.blocks.size());
    chunks_.push_back(std::move(chunk));
  }
  for (std::size_t i = 0; i < unkept_.size(); ++i) unkept_[i].turn = i;
}

void Pipeline::step(std::span<const MicroBatch> batch, ParamWatch& watch) {
  play(stage_.training_of(batch.size()), batch, watch);
}

void Pipeline::step(std::span<const MicroBatch> batch) {
  ParamWatch nobody;
  step(batch, nobody);
}

void Pipeline::forward(std::span<const MicroBatch> batch, ParamWatch& watch) { play(stage_.evaluation, batch, watch); }

void Pipeline::forward(std::span<const MicroBatch> batch) {
  ParamWatch nobody;
  forward(batch, nobody);
}

void Pipeline::play(const StagePlan& plan, std::span<const MicroBatch> batch, ParamWatch& watch) {
  require(!plan.exchanges.empty(), "the stage has no plan for this");
  require(static_cast<int>(batch.size()) == plan.microbatches, "{} microbatches where the plan has {}", batch.size(),
          plan.microbatches);
  borders_.begin(plan, batch);
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    now_ = {&plan, &watch, i};
    borders_.post(plan.exchanges[i]);
    play(plan.actions[i], batch[static_cast<std::size_t>(plan.actions[i].microbatch)]);
  }
  borders_.post(plan.exchanges.back());
  borders_.end();
  offload_.end();
}

void Pipeline::play(const Action& action, const MicroBatch& mb) {
  Chunk& chunk = chunks_[static_cast<std::size_t>(action.chunk)];
  if (chunk.blocks.empty()) return hand_through(action);
  if (!now_.plan->backward) return play_forward(chunk, action, mb);
  switch (action.act) {
    case Act::F: return play_f(chunk, action, mb);
    case Act::B: return play_b(chunk, action, mb);
    case Act::W: return play_w(chunk, action, mb);
    case Act::BW: return play_bw(chunk, action, mb);
  }
}

void Pipeline::hand_through(const Action& action) {
  if (action.act == Act::W) return;
  const Tensor from = borders_.input(action);
  ops_.copy({.src = from, .dst = borders_.result(action)});
}

// The one that is visited after this, in this action or in a later one.
Pipeline::Call Pipeline::next_call(Chunk& chunk, std::size_t block) {
  const auto& actions = now_.plan->actions;
  const Action& action = actions[now_.action];
  const bool forward = action.act == Act::F;
  if (forward && block + 1 < chunk.blocks.size()) return {&chunk, block + 1, &action};
  if (!forward && block > 0) return {&chunk, block - 1, &action};
  for (std::size_t i = now_.action + 1; i < actions.size(); ++i) {
    Chunk& next = chunks_[static_cast<std::size_t>(actions[i].chunk)];
    if (!next.blocks.empty()) return {&next, actions[i].act == Act::F ? 0 : next.blocks.size() - 1, &actions[i]};
  }
  return {};
}

void Pipeline::bring_ahead(const Call& call) {
  if (!call.chunk || call.action->act == Act::F) return;
  offload_.bring_ahead(flight_of(*call.chunk, call.action->microbatch).parcels[call.block], call.action->act);
}

template <class Work>
void Pipeline::visit(Chunk& chunk, std::size_t block, const Work& work) {
  const Action& action = now_.plan->actions[now_.action];
  const int number = chunk.first_block + static_cast<int>(block);
  const bool makes_weight_gradients = action.act == Act::W || action.act == Act::BW;
  const Call next = next_call(chunk, block);
  now_.watch->before(number, action.act, next.chunk ? next.chunk->first_block + static_cast<int>(next.block) : -1);
  const bool offloads = offload_.any() && now_.plan->backward;
  if (offloads && action.act != Act::F) {
    offload_.begin_b(flight_of(chunk, action.microbatch).parcels[block], action.act);
    bring_ahead(next);
  }
  work();
  if (offloads && action.act == Act::F) bring_ahead(next);
  now_.watch->after(number, action.act, makes_weight_gradients && action.microbatch + 1 == now_.plan->microbatches);
}

// Microbatches take and give back in ascending order, so those that hold an arena at one time have different turns.
Arena* Pipeline::take(std::vector<Arena>& pool, int microbatch) {
  Arena* arena = &pool[static_cast<std::size_t>(microbatch) % pool.size()];
  require(arena->mark() == 0, "microbatch {} finds its memory in use", microbatch);
  return arena;
}

void Pipeline::give_back(Arena*& arena) {
  arena->rewind(0);
  arena = nullptr;
}

Stash Pipeline::stash_of(const Flight& flight) {
  // What an action may not use points at replay, which is there in every action.
  const auto or_replay = [&](Arena* arena) -> Arena& { return arena ? *arena : *memory_.replay; };
  return {or_replay(flight.f_to_b), or_replay(flight.f_to_w), or_replay(flight.b_to_w), *memory_.replay,
          offload_.any() ? &offload_ : nullptr};
}

void Pipeline::take_host(Chunk& chunk, Flight& flight, int microbatch) {
  if (!offload_.any()) return;
  flight.host = {take(chunk.memory.host_f_to_b, microbatch), take(chunk.memory.host_f_to_w, microbatch)};
}

void Pipeline::give_back_host(Flight& flight, Act act) {
  if (!offload_.any()) return;
  for (Offload::Parcel& parcel : flight.parcels) Offload::forget(parcel, act);
  if (act != Act::W) give_back(flight.host.f_to_b);
  if (act != Act::B) give_back(flight.host.f_to_w);
}

Pipeline::Flight& Pipeline::flight_of(Chunk& chunk, int microbatch) {
  return chunk.flights[static_cast<std::size_t>(microbatch) % chunk.flights.size()];
}

void Pipeline::play_f(Chunk& chunk, const Action& action, const MicroBatch& mb) {
  Flight& flight = flight_of(chunk, action.microbatch);
  flight.f_to_b = take(chunk.memory.f_to_b, action.microbatch);
  flight.f_to_w = take(chunk.memory.f_to_w, action.microbatch);
  take_host(chunk, flight, action.microbatch);
  Stash stash = stash_of(flight);
  Run run{ops_, stash, *memory_.scratch, mb};
  Tensor x = borders_.input(action);
  const Tensor result = borders_.result(action);
  const Shape border = borders_.shape_of(mb);
  for (std::size_t i = 0; i < chunk.blocks.size(); ++i) {
    const bool last = i + 1 == chunk.blocks.size();
    flight.x[i] = x;
    visit(chunk, i, [&] {
      if (offload_.any()) offload_.begin_f(flight.parcels[i], flight.host);
      Offload::Parcel* next = last || !offload_.takes_x() ? nullptr : &flight.parcels[i + 1];
      const Tensor y = last   ? result
                       : next ? offload_.take_x(*next, border, stage_.dtype)
                              : flight.f_to_b->take(border, stage_.dtype, "border.x");
      ScratchScope scope(*memory_.scratch);
      chunk.blocks[i]->forward(run, *flight.saved[i], x, y);
      if (offload_.any()) offload_.end_f(next);
      x = y;
    });
  }
}

void Pipeline::block_b(Chunk& chunk, std::size_t block, Flight& flight, Run& run, const Tensor& dx) {
  ScratchScope scope(*memory_.scratch);
  chunk.blocks[block]->backward_input(run, *flight.saved[block], flight.x[block], flight.dy[block], dx);
}

void Pipeline::block_w(Chunk& chunk, std::size_t block, Flight& flight, Run& run) {
  ScratchScope scope(*memory_.scratch);
  chunk.blocks[block]->backward_weight(run, *flight.saved[block], flight.dy[block]);
}

void Pipeline::play_b(Chunk& chunk, const Action& action, const MicroBatch& mb) {
  Flight& flight = flight_of(chunk, action.microbatch);
  flight.b_to_w = take(chunk.memory.b_to_w, action.microbatch);
  Stash stash = stash_of(flight);
  Run run{ops_, stash, *memory_.scratch, mb};
  flight.dy.back() = borders_.input(action);
  const Tensor result = borders_.result(action);
  for (std::size_t i = chunk.blocks.size(); i-- > 0;) {
    if (i > 0) flight.dy[i - 1] = flight.b_to_w->take(borders_.shape_of(mb), stage_.dtype, "border.dy");
    visit(chunk, i, [&] { block_b(chunk, i, flight, run, i > 0 ? flight.dy[i - 1] : result); });
  }
  give_back(flight.f_to_b);
  give_back_host(flight, Act::B);
}

void Pipeline::play_w(Chunk& chunk, const Action& action, const MicroBatch& mb) {
  Flight& flight = flight_of(chunk, action.microbatch);
  Stash stash = stash_of(flight);
  Run run{ops_, stash, *memory_.scratch, mb};
  for (std::size_t i = chunk.blocks.size(); i-- > 0;) visit(chunk, i, [&] { block_w(chunk, i, flight, run); });
  give_back(flight.f_to_w);
  give_back(flight.b_to_w);
  give_back_host(flight, Act::W);
}

// With B and W of a block back to back, dy needs two buffers in all, and what waits for W only one block's.
void Pipeline::play_bw(Chunk& chunk, const Action& action, const MicroBatch& mb) {
  Flight& flight = flight_of(chunk, action.microbatch);
  flight.b_to_w = take(chunk.memory.b_to_w, action.microbatch);
  Stash stash = stash_of(flight);
  Run run{ops_, stash, *memory_.scratch, mb, /*w_follows=*/true, stage_.w_in_b};
  flight.dy.back() = borders_.input(action);
  const Tensor result = borders_.result(action);
  const TwoBorders dy(*flight.b_to_w, chunk.blocks.size(), borders_.shape_of(mb), stage_.dtype, "border.dy");
  const std::size_t mark = flight.b_to_w->mark();
  for (std::size_t i = chunk.blocks.size(); i-- > 0;) {
    if (i > 0) flight.dy[i - 1] = dy.behind(i - 1);
    visit(chunk, i, [&] {
      block_b(chunk, i, flight, run, i > 0 ? flight.dy[i - 1] : result);
      block_w(chunk, i, flight, run);
    });
    flight.b_to_w->rewind(mark);
  }
  give_back(flight.f_to_b);
  give_back(flight.f_to_w);
  give_back(flight.b_to_w);
  give_back_host(flight, Act::BW);
}

// Keeps nothing, in the memory of a training step where there is one: it needs no more of any kind.
void Pipeline::play_forward(Chunk& chunk, const Action& action, const MicroBatch& mb) {
  Flight& flight = chunk.flights.front();
  Arena& until_b = chunk.memory.f_to_b.front();
  Arena& until_w = chunk.memory.f_to_w.empty() ? until_b : chunk.memory.f_to_w.front();
  Stash stash(until_b, until_w, until_w, *memory_.replay, offload_.any() ? &offload_ : nullptr);
  Run run{ops_, stash, *memory_.scratch, mb};
  const Tensor first = borders_.input(action), result = borders_.result(action);
  const Shape border = borders_.shape_of(mb);
  ScratchScope borders_scope(until_b);
  const TwoBorders borders(until_b, offload_.takes_x() ? 1 : chunk.blocks.size(), border, stage_.dtype, "border.x");
  Tensor x = first;
  for (std::size_t i = 0; i < chunk.blocks.size(); ++i) {
    const bool last = i + 1 == chunk.blocks.size();
    visit(chunk, i, [&] {
      if (offload_.any()) offload_.begin_f(unkept_[i % 2], {});
      const Tensor y = last                 ? result
                       : offload_.takes_x() ? offload_.take_x(unkept_[(i + 1) % 2], border, stage_.dtype)
                                            : borders.behind(i);
      ScratchScope scope(*memory_.scratch), b_scope(until_b), w_scope(until_w);
      chunk.blocks[i]->forward(run, *flight.saved[i], x, y);
      if (offload_.any()) offload_.end_f(nullptr);
      x = y;
    });
  }
}

}  // namespace tera
