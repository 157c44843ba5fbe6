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

bool Stage::plays_pairs() const {
  bool pairs = false;
  for_each_plan([&](const StagePlan& plan) {
    pairs = pairs || std::ranges::any_of(plan.actions, [](const Action& action) { return action.with_next; });
  });
  return pairs;
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
  require(!stage.plays_pairs() || !offload_.any(), "blocks that are played together have no buffers to be offloaded");
  int blocks = 0;
  for (std::size_t i = 0; i < stage.chunks.size(); ++i) {
    Chunk chunk{
        .blocks = stage.chunks[i], .in_parts = {}, .memory = memory.chunks[i], .first_block = blocks, .flights = {}};
    for (const auto& block : chunk.blocks) chunk.in_parts.push_back(in_parts(*block));
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
  const auto mb_of = [&](const Action& action) -> const MicroBatch& {
    return batch[static_cast<std::size_t>(action.microbatch)];
  };
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& action = plan.actions[i];
    now_ = {&plan, &watch, i};
    borders_.post(plan.exchanges[i]);
    if (action.with_next) {
      const Action& b = plan.actions[++i];
      require(plan.exchanges[i].empty(), "an exchange between two actions that are played together");
      play_pair(action, mb_of(action), b, mb_of(b));
    } else {
      play(action, mb_of(action));
    }
  }
  borders_.post(plan.exchanges.back());
  borders_.end();
  offload_.end();
}

void Pipeline::play(const Action& action, const MicroBatch& mb) {
  Chunk& chunk = chunks_[static_cast<std::size_t>(action.chunk)];
  if (chunk.blocks.empty()) return hand_through(action);
  if (!now_.plan->backward) return play_forward(chunk, action, mb);
  if (action.act == Act::W) return play_w(chunk, action, mb);
  Pass pass = action.act == Act::F ? begin_f(chunk, action, mb) : begin_b(chunk, action, mb);
  while (pass.left > 0) play_block(pass, next_call(call_of(pass)));
  if (!pass.forward()) end_b(pass);
}

void Pipeline::hand_through(const Action& action) {
  if (action.act == Act::W) return;
  const Tensor from = borders_.input(action);
  ops_.copy({.src = from, .dst = borders_.result(action)});
}

Pipeline::Call Pipeline::call_of(const Pass& pass) { return {&pass.chunk, pass.block(), &pass.action}; }

// The one that is visited after this, in this action or in a later one.
Pipeline::Call Pipeline::next_call(const Call& call) {
  const bool forward = call.action->act == Act::F;
  if (forward && call.block + 1 < call.chunk->blocks.size()) return {call.chunk, call.block + 1, call.action};
  if (!forward && call.block > 0) return {call.chunk, call.block - 1, call.action};
  return first_call(now_.action + 1);
}

Pipeline::Call Pipeline::first_call(std::size_t action) {
  const auto& actions = now_.plan->actions;
  for (std::size_t i = action; i < actions.size(); ++i) {
    Chunk& next = chunks_[static_cast<std::size_t>(actions[i].chunk)];
    if (!next.blocks.empty()) return {&next, actions[i].act == Act::F ? 0 : next.blocks.size() - 1, &actions[i]};
  }
  return {};
}

void Pipeline::bring_ahead(const Call& call) {
  if (!call.chunk || call.action->act == Act::F) return;
  offload_.bring_ahead(flight_of(*call.chunk, call.action->microbatch).parcels[call.block], call.action->act);
}

void Pipeline::tell_before(const Call& call, const Call& next) {
  const auto number = [](const Call& c) { return c.chunk ? c.chunk->first_block + static_cast<int>(c.block) : -1; };
  now_.watch->before(number(call), call.action->act, number(next));
}

void Pipeline::tell_after(const Call& call) {
  const Act act = call.action->act;
  const bool last = (act == Act::W || act == Act::BW) && call.action->microbatch + 1 == now_.plan->microbatches;
  now_.watch->after(call.chunk->first_block + static_cast<int>(call.block), act, last);
}

template <class Work>
void Pipeline::visit(const Call& call, const Call& next, const Work& work) {
  tell_before(call, next);
  const bool offloads = offload_.any() && now_.plan->backward, forward = call.action->act == Act::F;
  if (offloads && !forward) {
    offload_.begin_b(flight_of(*call.chunk, call.action->microbatch).parcels[call.block], call.action->act);
    bring_ahead(next);
  }
  work();
  if (offloads && forward) bring_ahead(next);
  tell_after(call);
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

Pipeline::Pass Pipeline::begin_f(Chunk& chunk, const Action& action, const MicroBatch& mb) {
  Flight& flight = flight_of(chunk, action.microbatch);
  flight.f_to_b = take(chunk.memory.f_to_b, action.microbatch);
  flight.f_to_w = take(chunk.memory.f_to_w, action.microbatch);
  take_host(chunk, flight, action.microbatch);
  flight.x.front() = borders_.input(action);
  return {chunk, action, mb, flight, stash_of(flight), borders_.result(action), chunk.blocks.size()};
}

// With B and W of a block back to back, dy needs two buffers in all, and what waits for W only one block's.
Pipeline::Pass Pipeline::begin_b(Chunk& chunk, const Action& action, const MicroBatch& mb) {
  Flight& flight = flight_of(chunk, action.microbatch);
  flight.b_to_w = take(chunk.memory.b_to_w, action.microbatch);
  flight.dy.back() = borders_.input(action);
  const std::size_t different = action.act == Act::BW ? 2 : chunk.blocks.size();
  for (std::size_t i = 0; i + 1 < chunk.blocks.size(); ++i)
    flight.dy[i] = i < different ? flight.b_to_w->take(borders_.shape_of(mb), stage_.dtype, "border.dy")
                                 : flight.dy[i - different];
  return {
      chunk, action, mb, flight, stash_of(flight), borders_.result(action), chunk.blocks.size(), flight.b_to_w->mark()};
}

Run Pipeline::run_of(Pass& pass, Arena& scratch) {
  const bool w_follows = pass.action.act == Act::BW;
  return {ops_, pass.stash, scratch, pass.mb, w_follows, w_follows && stage_.w_in_b};
}

void Pipeline::play_block(Pass& pass, const Call& next) {
  visit(call_of(pass), next, [&] { pass.forward() ? forward_block(pass) : backward_block(pass); });
  --pass.left;
}

// Where the next block of F finds its x, or the next virtual stage.
Tensor Pipeline::output_of(const Pass& pass) {
  const std::size_t i = pass.block();
  if (pass.left == 1) return pass.result;
  Tensor& next = pass.flight.x[i + 1];
  const Shape border = borders_.shape_of(pass.mb);
  next = offload_.takes_x() ? offload_.take_x(pass.flight.parcels[i + 1], border, stage_.dtype)
                            : pass.flight.f_to_b->take(border, stage_.dtype, "border.x");
  return next;
}

void Pipeline::forward_block(Pass& pass) {
  const std::size_t i = pass.block();
  Flight& flight = pass.flight;
  if (offload_.any()) offload_.begin_f(flight.parcels[i], flight.host);
  const Tensor y = output_of(pass);
  ScratchScope scope(*memory_.scratch);
  Run run = run_of(pass, *memory_.scratch);
  pass.chunk.blocks[i]->forward(run, *flight.saved[i], flight.x[i], y);
  const bool took_x = offload_.takes_x() && pass.left > 1;
  if (offload_.any()) offload_.end_f(took_x ? &flight.parcels[i + 1] : nullptr);
}

void Pipeline::block_b(Pass& pass, Run& run) {
  const std::size_t i = pass.block();
  ScratchScope scope(run.scratch);
  pass.chunk.blocks[i]->backward_input(run, *pass.flight.saved[i], pass.flight.x[i], pass.flight.dy[i],
                                       i > 0 ? pass.flight.dy[i - 1] : pass.result);
}

void Pipeline::block_w(Chunk& chunk, std::size_t block, Flight& flight, Run& run) {
  ScratchScope scope(run.scratch);
  chunk.blocks[block]->backward_weight(run, *flight.saved[block], flight.dy[block]);
}

void Pipeline::backward_block(Pass& pass) {
  Run run = run_of(pass, *memory_.scratch);
  block_b(pass, run);
  if (pass.action.act != Act::BW) return;
  block_w(pass.chunk, pass.block(), pass.flight, run);
  pass.flight.b_to_w->rewind(pass.mark);
}

void Pipeline::end_b(Pass& pass) {
  Flight& flight = pass.flight;
  give_back(flight.f_to_b);
  if (pass.action.act == Act::BW) {
    give_back(flight.f_to_w);
    give_back(flight.b_to_w);
  }
  give_back_host(flight, pass.action.act);
}

void Pipeline::play_w(Chunk& chunk, const Action& action, const MicroBatch& mb) {
  Flight& flight = flight_of(chunk, action.microbatch);
  Stash stash = stash_of(flight);
  Run run{ops_, stash, *memory_.scratch, mb};
  for (std::size_t i = chunk.blocks.size(); i-- > 0;) {
    const Call call{&chunk, i, &action};
    visit(call, next_call(call), [&] { block_w(chunk, i, flight, run); });
  }
  give_back(flight.f_to_w);
  give_back(flight.b_to_w);
  give_back_host(flight, Act::W);
}

// Blocks of both in turn, as far as both are in parts; others are played where they stand, alone.
void Pipeline::play_pair(const Action& f_action, const MicroBatch& f_mb, const Action& b_action,
                         const MicroBatch& b_mb) {
  Chunk& f_chunk = chunks_[static_cast<std::size_t>(f_action.chunk)];
  Chunk& b_chunk = chunks_[static_cast<std::size_t>(b_action.chunk)];
  if (f_chunk.blocks.empty() || b_chunk.blocks.empty()) {
    play(f_action, f_mb);
    ++now_.action;
    return play(b_action, b_mb);
  }
  Pass f = begin_f(f_chunk, f_action, f_mb), b = begin_b(b_chunk, b_action, b_mb);
  ++now_.action;  // both are being played: what comes next is behind the second
  enum class Turn : std::uint8_t { nobody, forward, backward, both };
  // A block that makes gradients in F has those of an earlier microbatch before its own, as without pairs: they may be
  // of the same parameter.
  const auto f_waits = [&] { return f.left > 0 && b.left > 0 && f.chunk.blocks[f.block()]->makes_gradients_in_f(); };
  const auto turn = [&] {
    if (f.left == 0 || f_waits()) return b.left == 0 ? Turn::nobody : Turn::backward;
    if (b.left == 0 || !f.in_parts()) return Turn::forward;
    return b.in_parts() ? Turn::both : Turn::backward;
  };
  // What is told first in the turn after this one.
  const auto next = [&](std::size_t f_played, std::size_t b_played) {
    f.left -= f_played;
    b.left -= b_played;
    const Turn then = turn();
    const Call call = then == Turn::nobody ? first_call(now_.action + 1) : call_of(then == Turn::forward ? f : b);
    f.left += f_played;
    b.left += b_played;
    return call;
  };
  for (Turn now = turn(); now != Turn::nobody; now = turn()) {
    if (now == Turn::forward) play_block(f, next(1, 0));
    if (now == Turn::backward) play_block(b, next(0, 1));
    if (now == Turn::both) play_together(f, b, next(1, 1));
  }
  end_b(b);
}

// One block of each, part by part; W of the one behind its B, while sums of the other are on their way.
void Pipeline::play_together(Pass& f, Pass& b, const Call& next) {
  const std::size_t i = f.block(), j = b.block();
  InParts &forward = *f.in_parts(), &backward = *b.in_parts();
  tell_before(call_of(b), call_of(f));
  tell_before(call_of(f), next);
  const Tensor y = output_of(f), dx = j > 0 ? b.flight.dy[j - 1] : b.result;
  Run f_run = run_of(f, *memory_.scratch_beside), b_run = run_of(b, *memory_.scratch);
  ScratchScope f_scope(f_run.scratch);
  const std::size_t mark = b_run.scratch.mark();
  for (int part = 0; part < std::max(forward.parts(), backward.parts()); ++part) {
    if (part < backward.parts())
      backward.backward_input_part(part, b_run, *b.flight.saved[j], b.flight.x[j], b.flight.dy[j], dx);
    if (part + 1 == backward.parts()) {
      b_run.scratch.rewind(mark);
      if (b.action.act == Act::BW) {
        block_w(b.chunk, j, b.flight, b_run);
        b.flight.b_to_w->rewind(b.mark);
      }
    }
    if (part < forward.parts()) forward.forward_part(part, f_run, *f.flight.saved[i], f.flight.x[i], y);
  }
  tell_after(call_of(b));
  tell_after(call_of(f));
  --f.left;
  --b.left;
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
    const Call call{&chunk, i, &action};
    visit(call, next_call(call), [&] {
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
