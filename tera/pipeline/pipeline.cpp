#include "tera/pipeline/pipeline.h"

#include <algorithm>
#include <array>

#include "tera/base/error.h"
#include "tera/ops/copy.h"

namespace tera {
namespace {

void check_plan(const Stage& stage, const StagePlan& plan) {
  const Placement& placement = plan.placement;
  require(plan.chunks.size() == stage.chunks.size(), "a plan for {} chunks, and blocks of {}", plan.chunks.size(),
          stage.chunks.size());
  for (int chunk = 0; chunk < placement.chunks; ++chunk) {
    const int virtual_stage = placement.virtual_stage(plan.rank, chunk);
    const bool at_end = virtual_stage == 0 || virtual_stage + 1 == placement.virtual_stages();
    require(!at_end || !stage.chunks[static_cast<std::size_t>(chunk)].empty(),
            "virtual stage {} of {} has no blocks; the first and the last need some", virtual_stage,
            placement.virtual_stages());
  }
  if (placement.stages == 1) return;
  require(stage.pp && stage.pp->size() == placement.stages && stage.pp->rank() == plan.rank,
          "a plan for rank {} of {} in a pipeline needs the group of these", plan.rank, placement.stages);
}

// Activations between n blocks, when each is needed for one block only: two in turn are enough.
class TwoBoundaries {
 public:
  TwoBoundaries(Arena& arena, std::size_t blocks, const Shape& size, DType dtype, std::string_view tag) {
    for (std::size_t i = 0; i < std::min<std::size_t>(2, blocks - 1); ++i) tensors_[i] = arena.take(size, dtype, tag);
  }
  const Tensor& after(std::size_t block) const { return tensors_[block % 2]; }

 private:
  std::array<Tensor, 2> tensors_;
};

}  // namespace

const StagePlan& Stage::training_of(std::size_t microbatches) const {
  for (const StagePlan& plan : smaller)
    if (static_cast<std::size_t>(plan.microbatches) == microbatches) return plan;
  return training;
}

bool Stage::overlaps_pairs() const {
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
      boundary_(ops, stage, *memory.buffers),
      offload_(ops, stage.offload, memory.offload) {
  stage.for_each_plan([&](const StagePlan& plan) {
    if (!plan.actions.empty()) check_plan(stage, plan);
  });
  require(!stage.overlaps_pairs() || !offload_.any(),
          "blocks that are played together have no buffers to be offloaded");
  int blocks = 0;
  for (std::size_t i = 0; i < stage.chunks.size(); ++i) {
    Chunk chunk{.blocks = stage.chunks[i],
                .phased = {},
                .memory = memory.chunks[i],
                .first_block = blocks,
                .microbatch_states = {}};
    for (const auto& block : chunk.blocks) chunk.phased.push_back(phased(*block));
    chunk.microbatch_states.resize(std::max<std::size_t>(chunk.memory.f_to_w.size(), 1));
    for (std::size_t f = 0; f < chunk.microbatch_states.size(); ++f) {
      MicrobatchState& state = chunk.microbatch_states[f];
      for (const auto& block : chunk.blocks) state.saved.push_back(block->make_saved());
      state.x.resize(chunk.blocks.size());
      state.dy.resize(chunk.blocks.size());
      // In most schedules the B after an F is that of the next microbatch: its slot then uses the other buffer.
      for (std::size_t b = 0; b < chunk.blocks.size(); ++b) state.slots.push_back({.index = b + f, .on_host = {}});
    }
    blocks += static_cast<int>(chunk.blocks.size());
    chunks_.push_back(std::move(chunk));
  }
  for (std::size_t i = 0; i < unkept_.size(); ++i) unkept_[i].index = i;
}

void Pipeline::step(std::span<const MicroBatch> batch, ParamHooks& hooks) {
  execute(stage_.training_of(batch.size()), batch, hooks);
}

void Pipeline::step(std::span<const MicroBatch> batch) {
  ParamHooks none;
  step(batch, none);
}

void Pipeline::forward(std::span<const MicroBatch> batch, ParamHooks& hooks) {
  execute(stage_.evaluation, batch, hooks);
}

void Pipeline::forward(std::span<const MicroBatch> batch) {
  ParamHooks none;
  forward(batch, none);
}

void Pipeline::execute(const StagePlan& plan, std::span<const MicroBatch> batch, ParamHooks& hooks) {
  require(!plan.exchanges.empty(), "the stage has no plan for this");
  require(static_cast<int>(batch.size()) == plan.microbatches, "{} microbatches where the plan has {}", batch.size(),
          plan.microbatches);
  boundary_.begin(plan, batch);
  const auto mb_of = [&](const Action& action) -> const MicroBatch& {
    return batch[static_cast<std::size_t>(action.microbatch)];
  };
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& action = plan.actions[i];
    now_ = {&plan, &hooks, i};
    boundary_.post(plan.exchanges[i]);
    if (action.with_next) {
      const Action& b = plan.actions[++i];
      require(plan.exchanges[i].empty(), "an exchange between two actions that are played together");
      execute_pair(action, mb_of(action), b, mb_of(b));
    } else {
      execute(action, mb_of(action));
    }
  }
  boundary_.post(plan.exchanges.back());
  boundary_.end();
  offload_.end();
}

void Pipeline::execute(const Action& action, const MicroBatch& mb) {
  Chunk& chunk = chunks_[static_cast<std::size_t>(action.chunk)];
  if (chunk.blocks.empty()) return pass_through(action);
  if (!now_.plan->backward) return execute_forward_only(chunk, action, mb);
  if (action.act == Act::W) return execute_w(chunk, action, mb);
  Pass pass = action.act == Act::F ? begin_f(chunk, action, mb) : begin_b(chunk, action, mb);
  while (pass.left > 0) run_block(pass, next_call(call_of(pass)));
  if (!pass.forward()) end_b(pass);
}

void Pipeline::pass_through(const Action& action) {
  if (action.act == Act::W) return;
  const Tensor from = boundary_.input(action);
  ops_(CopyArgs{.src = from, .dst = boundary_.result(action)});
}

Pipeline::Call Pipeline::call_of(const Pass& pass) { return {&pass.chunk, pass.block(), &pass.action}; }

// The call that is visited after this one, in this action or in a later one.
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

void Pipeline::prefetch(const Call& call) {
  if (!call.chunk || call.action->act == Act::F) return;
  offload_.prefetch(microbatch_state_of(*call.chunk, call.action->microbatch).slots[call.block], call.action->act);
}

void Pipeline::notify_before(const Call& call, const Call& next) {
  const auto number = [](const Call& c) { return c.chunk ? c.chunk->first_block + static_cast<int>(c.block) : -1; };
  now_.hooks->before(number(call), call.action->act, number(next));
}

void Pipeline::notify_after(const Call& call) {
  const Act act = call.action->act;
  const bool last = (act == Act::W || act == Act::BW) && call.action->microbatch + 1 == now_.plan->microbatches;
  now_.hooks->after(call.chunk->first_block + static_cast<int>(call.block), act, last);
}

template <class Work>
void Pipeline::visit(const Call& call, const Call& next, const Work& work) {
  notify_before(call, next);
  const bool offloads = offload_.any() && now_.plan->backward, forward = call.action->act == Act::F;
  if (offloads && !forward) {
    offload_.begin_b(microbatch_state_of(*call.chunk, call.action->microbatch).slots[call.block], call.action->act);
    prefetch(next);
  }
  work();
  if (offloads && forward) prefetch(next);
  notify_after(call);
}

// Microbatches take and give back arenas in ascending order, so microbatches in flight have different indices.
Arena* Pipeline::take(std::vector<Arena>& pool, int microbatch) {
  Arena* arena = &pool[static_cast<std::size_t>(microbatch) % pool.size()];
  require(arena->mark() == 0, "microbatch {} finds its memory in use", microbatch);
  return arena;
}

void Pipeline::give_back(Arena*& arena) {
  arena->rewind(0);
  arena = nullptr;
}

Stash Pipeline::stash_of(const MicrobatchState& state) {
  // Lifetimes that an action may not use point at replay, which exists in every action.
  const auto or_replay = [&](Arena* arena) -> Arena& { return arena ? *arena : *memory_.replay; };
  return {or_replay(state.f_to_b), or_replay(state.f_to_w), or_replay(state.b_to_w), *memory_.replay,
          offload_.any() ? &offload_ : nullptr};
}

void Pipeline::take_host(Chunk& chunk, MicrobatchState& state, int microbatch) {
  if (!offload_.any()) return;
  state.host = {take(chunk.memory.host_f_to_b, microbatch), take(chunk.memory.host_f_to_w, microbatch)};
}

void Pipeline::give_back_host(MicrobatchState& state, Act act) {
  if (!offload_.any()) return;
  for (Offload::OffloadSlot& slot : state.slots) Offload::release(slot, act);
  if (act != Act::W) give_back(state.host.f_to_b);
  if (act != Act::B) give_back(state.host.f_to_w);
}

Pipeline::MicrobatchState& Pipeline::microbatch_state_of(Chunk& chunk, int microbatch) {
  return chunk.microbatch_states[static_cast<std::size_t>(microbatch) % chunk.microbatch_states.size()];
}

Pipeline::Pass Pipeline::begin_f(Chunk& chunk, const Action& action, const MicroBatch& mb) {
  MicrobatchState& state = microbatch_state_of(chunk, action.microbatch);
  state.f_to_b = take(chunk.memory.f_to_b, action.microbatch);
  state.f_to_w = take(chunk.memory.f_to_w, action.microbatch);
  take_host(chunk, state, action.microbatch);
  state.x.front() = boundary_.input(action);
  return {chunk, action, mb, state, stash_of(state), boundary_.result(action), chunk.blocks.size()};
}

// In BW, with W of a block right after its B, dy needs two buffers in all, and memory from B to W is one block's.
Pipeline::Pass Pipeline::begin_b(Chunk& chunk, const Action& action, const MicroBatch& mb) {
  MicrobatchState& state = microbatch_state_of(chunk, action.microbatch);
  state.b_to_w = take(chunk.memory.b_to_w, action.microbatch);
  state.dy.back() = boundary_.input(action);
  const std::size_t different = action.act == Act::BW ? 2 : chunk.blocks.size();
  for (std::size_t i = 0; i + 1 < chunk.blocks.size(); ++i)
    state.dy[i] =
        i < different ? state.b_to_w->take(boundary_.shape_of(mb), stage_.dtype, "border.dy") : state.dy[i - different];
  return {
      chunk, action, mb, state, stash_of(state), boundary_.result(action), chunk.blocks.size(), state.b_to_w->mark()};
}

Run Pipeline::run_of(Pass& pass, Arena& scratch) {
  const bool w_follows = pass.action.act == Act::BW;
  return {ops_, pass.stash, scratch, pass.mb, w_follows, w_follows && stage_.w_in_b};
}

void Pipeline::run_block(Pass& pass, const Call& next) {
  visit(call_of(pass), next, [&] { pass.forward() ? forward_block(pass) : backward_block(pass); });
  --pass.left;
}

// The output of F's current block: x of the next block, or what goes to the next virtual stage.
Tensor Pipeline::output_of(const Pass& pass) {
  const std::size_t i = pass.block();
  if (pass.left == 1) return pass.result;
  Tensor& next = pass.state.x[i + 1];
  const Shape border = boundary_.shape_of(pass.mb);
  next = offload_.takes_x() ? offload_.take_x(pass.state.slots[i + 1], border, stage_.dtype)
                            : pass.state.f_to_b->take(border, stage_.dtype, "border.x");
  return next;
}

void Pipeline::forward_block(Pass& pass) {
  const std::size_t i = pass.block();
  MicrobatchState& state = pass.state;
  if (offload_.any()) offload_.begin_f(state.slots[i], state.host);
  const Tensor y = output_of(pass);
  ScratchScope scope(*memory_.scratch);
  Run run = run_of(pass, *memory_.scratch);
  pass.chunk.blocks[i]->forward(run, *state.saved[i], state.x[i], y);
  const bool took_x = offload_.takes_x() && pass.left > 1;
  if (offload_.any()) offload_.end_f(took_x ? &state.slots[i + 1] : nullptr);
}

void Pipeline::block_b(Pass& pass, Run& run) {
  const std::size_t i = pass.block();
  ScratchScope scope(run.scratch);
  pass.chunk.blocks[i]->backward_input(run, *pass.state.saved[i], pass.state.x[i], pass.state.dy[i],
                                       i > 0 ? pass.state.dy[i - 1] : pass.result);
}

void Pipeline::block_w(Chunk& chunk, std::size_t block, MicrobatchState& state, Run& run) {
  ScratchScope scope(run.scratch);
  chunk.blocks[block]->backward_weight(run, *state.saved[block], state.dy[block]);
}

void Pipeline::backward_block(Pass& pass) {
  Run run = run_of(pass, *memory_.scratch);
  block_b(pass, run);
  if (pass.action.act != Act::BW) return;
  block_w(pass.chunk, pass.block(), pass.state, run);
  pass.state.b_to_w->rewind(pass.mark);
}

void Pipeline::end_b(Pass& pass) {
  MicrobatchState& state = pass.state;
  give_back(state.f_to_b);
  if (pass.action.act == Act::BW) {
    give_back(state.f_to_w);
    give_back(state.b_to_w);
  }
  give_back_host(state, pass.action.act);
}

void Pipeline::execute_w(Chunk& chunk, const Action& action, const MicroBatch& mb) {
  MicrobatchState& state = microbatch_state_of(chunk, action.microbatch);
  Stash stash = stash_of(state);
  Run run{ops_, stash, *memory_.scratch, mb};
  for (std::size_t i = chunk.blocks.size(); i-- > 0;) {
    const Call call{&chunk, i, &action};
    visit(call, next_call(call), [&] { block_w(chunk, i, state, run); });
  }
  give_back(state.f_to_w);
  give_back(state.b_to_w);
  give_back_host(state, Act::W);
}

// Overlaps an F with a B: pairs of blocks that both have phases run phase by phase in turn, other blocks alone.
void Pipeline::execute_pair(const Action& f_action, const MicroBatch& f_mb, const Action& b_action,
                            const MicroBatch& b_mb) {
  Chunk& f_chunk = chunks_[static_cast<std::size_t>(f_action.chunk)];
  Chunk& b_chunk = chunks_[static_cast<std::size_t>(b_action.chunk)];
  if (f_chunk.blocks.empty() || b_chunk.blocks.empty()) {
    execute(f_action, f_mb);
    ++now_.action;
    return execute(b_action, b_mb);
  }
  Pass f = begin_f(f_chunk, f_action, f_mb), b = begin_b(b_chunk, b_action, b_mb);
  ++now_.action;  // both are running: the next action is the one after the second
  enum class Step : std::uint8_t { none, forward, backward, both };
  // A block that makes weight gradients in F waits until those of the earlier microbatch are made, as it does without
  // pairs: they may be of the same parameter.
  const auto f_waits = [&] { return f.left > 0 && b.left > 0 && f.chunk.blocks[f.block()]->makes_gradients_in_f(); };
  const auto step_now = [&] {
    if (f.left == 0 || f_waits()) return b.left == 0 ? Step::none : Step::backward;
    if (b.left == 0 || !f.phased()) return Step::forward;
    return b.phased() ? Step::both : Step::backward;
  };
  // The first call of the step after this one.
  const auto next = [&](std::size_t f_done, std::size_t b_done) {
    f.left -= f_done;
    b.left -= b_done;
    const Step then = step_now();
    const Call call = then == Step::none ? first_call(now_.action + 1) : call_of(then == Step::forward ? f : b);
    f.left += f_done;
    b.left += b_done;
    return call;
  };
  for (Step now = step_now(); now != Step::none; now = step_now()) {
    if (now == Step::forward) run_block(f, next(1, 0));
    if (now == Step::backward) run_block(b, next(0, 1));
    if (now == Step::both) run_overlapped(f, b, next(1, 1));
  }
  end_b(b);
}

// One block of each, phase by phase; W of the B block runs after its B and overlaps the combine of the F block.
void Pipeline::run_overlapped(Pass& f, Pass& b, const Call& next) {
  const std::size_t i = f.block(), j = b.block();
  Phased &forward = *f.phased(), &backward = *b.phased();
  notify_before(call_of(b), call_of(f));
  notify_before(call_of(f), next);
  const Tensor y = output_of(f), dx = j > 0 ? b.state.dy[j - 1] : b.result;
  Run f_run = run_of(f, *memory_.overlapped_scratch), b_run = run_of(b, *memory_.scratch);
  ScratchScope f_scope(f_run.scratch);
  const std::size_t mark = b_run.scratch.mark();
  for (int phase = 0; phase < std::max(forward.phases(), backward.phases()); ++phase) {
    if (phase < backward.phases())
      backward.backward_input_phase(phase, b_run, *b.state.saved[j], b.state.x[j], b.state.dy[j], dx);
    if (phase + 1 == backward.phases()) {
      b_run.scratch.rewind(mark);
      if (b.action.act == Act::BW) {
        block_w(b.chunk, j, b.state, b_run);
        b.state.b_to_w->rewind(b.mark);
      }
    }
    if (phase < forward.phases()) forward.forward_phase(phase, f_run, *f.state.saved[i], f.state.x[i], y);
  }
  notify_after(call_of(b));
  notify_after(call_of(f));
  --f.left;
  --b.left;
}

// Evaluation: keeps nothing, and uses the memory of a training step, which is never less.
void Pipeline::execute_forward_only(Chunk& chunk, const Action& action, const MicroBatch& mb) {
  MicrobatchState& state = chunk.microbatch_states.front();
  Arena& until_b = chunk.memory.f_to_b.front();
  Arena& until_w = chunk.memory.f_to_w.empty() ? until_b : chunk.memory.f_to_w.front();
  Stash stash(until_b, until_w, until_w, *memory_.replay, offload_.any() ? &offload_ : nullptr);
  Run run{ops_, stash, *memory_.scratch, mb};
  const Tensor first = boundary_.input(action), result = boundary_.result(action);
  const Shape border = boundary_.shape_of(mb);
  ScratchScope inner_scope(until_b);
  const TwoBoundaries inner(until_b, offload_.takes_x() ? 1 : chunk.blocks.size(), border, stage_.dtype, "border.x");
  Tensor x = first;
  for (std::size_t i = 0; i < chunk.blocks.size(); ++i) {
    const bool last = i + 1 == chunk.blocks.size();
    const Call call{&chunk, i, &action};
    visit(call, next_call(call), [&] {
      if (offload_.any()) offload_.begin_f(unkept_[i % 2], {});
      const Tensor y = last                 ? result
                       : offload_.takes_x() ? offload_.take_x(unkept_[(i + 1) % 2], border, stage_.dtype)
                                            : inner.after(i);
      ScratchScope scope(*memory_.scratch), b_scope(until_b), w_scope(until_w);
      chunk.blocks[i]->forward(run, *state.saved[i], x, y);
      if (offload_.any()) offload_.end_f(nullptr);
      x = y;
    });
  }
}

}  // namespace tera
