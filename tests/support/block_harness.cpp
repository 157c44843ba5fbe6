#include "tests/support/block_harness.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tera/backend/cpu/workspace.h"
#include "tera/backend/plan/plan_ops.h"
#include "tera/base/error.h"
#include "tera/ops/copy.h"
#include "tests/support/fill.h"
#include "tests/support/transfer.h"

namespace tera::test {
namespace {

std::vector<float> normals(std::size_t size, std::uint64_t seed, double scale, double mean = 0) {
  const Values values = normal_values(shape(static_cast<std::int64_t>(size)), seed, scale, mean);
  return {values.begin(), values.end()};
}

void append(std::vector<float>& to, const std::vector<float>& from) { to.insert(to.end(), from.begin(), from.end()); }

}  // namespace

BlockHarness::BlockHarness(const BlockSetup& setup)
    : setup_(setup),
      ops_(setup.threads, cpu::best_isa()),
      params_(setup.compute, setup.freeze),
      block_(setup.make(params_)) {
  params_.lay_out();
  for (auto& state : states_) state.saved = block_->make_saved();
  bind(measured_);
  const cpu::CpuWorkspaceRules rules(setup_.threads);
  PlanOps plan_ops(rules);
  execute_on(plan_ops, one_stage(microbatches));
  make_real();
  bind(real_);
  ops_.bind_workspace(device_.allocate(plan_ops.workspace_peak()));
  params_.fill_constants(ops_);
  fill_inputs();
  fill_params();
}

BlockHarness::Region BlockHarness::allocate_region(const Region& measured) {
  const auto bytes = device_.allocate(measured.arena.peak());
  return {Arena(bytes, "test"), bytes};
}

void BlockHarness::make_real() {
  real_ = {allocate_region(measured_.weights),
           allocate_region(measured_.constants),
           allocate_region(measured_.grads),
           allocate_region(measured_.inputs),
           allocate_region(measured_.replay),
           allocate_region(measured_.scratch),
           {}};
  for (std::size_t i = 0; i < microbatches; ++i)
    for (std::size_t life = 0; life < 3; ++life) real_.stash[i][life] = allocate_region(measured_.stash[i][life]);
}

void BlockHarness::bind(Memory& memory) {
  memory_ = &memory;
  params_.bind({memory.weights.arena, memory.constants.arena, &memory.weights.arena, &memory.grads.arena});
  bind_inputs(memory.inputs.arena);
  for (std::size_t i = 0; i < microbatches; ++i) states_[i].stash = &memory.stash[i];
}

void BlockHarness::bind_inputs(Arena& arena) {
  const std::int64_t rows = setup_.batch * setup_.seq;
  Tensor counts, losses;
  if (setup_.experts > 0) {
    counts = arena.take(shape(1, setup_.experts), DType::i32, "expert_counts");
    losses = arena.take(shape(static_cast<int>(AuxLoss::count)), DType::f32, "aux_losses");
  }
  for (auto& state : states_) {
    const auto boundary = [&](bool there, const char* tag) {
      return there ? arena.take(shape(rows, setup_.hidden), setup_.compute, tag) : Tensor{};
    };
    state.x = boundary(setup_.has_x, "x");
    state.dx = boundary(setup_.has_x, "dx");
    state.y = boundary(setup_.has_y, "y");
    state.dy = boundary(setup_.has_y, "dy");
    state.mb = {.tokens = arena.take(shape(rows), DType::i32, "tokens"),
                .targets = arena.take(shape(rows), DType::i32, "targets"),
                .positions = arena.take(shape(rows), DType::i32, "positions"),
                .rows = arena.take(shape(rows), DType::i64, "rows"),
                .batch = setup_.batch,
                .token_loss = arena.take(shape(rows), DType::f32, "token_loss"),
                .loss_scale = arena.take(shape(1), DType::f32, "loss_scale"),
                .aux_scale = arena.take(shape(1), DType::f32, "aux_scale"),
                .expert_counts = counts,
                .aux_losses = losses};
    if (!setup_.offsets.empty())
      state.mb.offsets = arena.take(shape(static_cast<std::int64_t>(setup_.offsets.size())), DType::i32, "offsets");
  }
}

void BlockHarness::fill_inputs() {
  const auto rows = static_cast<std::size_t>(setup_.batch * setup_.seq);
  for (std::size_t i = 0; i < microbatches; ++i) {
    MicrobatchState& state = states_[i];
    std::vector<std::int32_t> tokens(rows), targets(rows), positions(rows);
    std::vector<std::int64_t> ids(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      const auto bits = philox({77}, row, i);
      tokens[row] = static_cast<std::int32_t>(bits[0] % setup_.vocab);
      targets[row] = row % 5 == 3 ? -1 : static_cast<std::int32_t>(bits[1] % setup_.vocab);
      positions[row] = static_cast<std::int32_t>(row % static_cast<std::size_t>(setup_.seq));
      ids[row] = static_cast<std::int64_t>(1000 + i * rows + row);
    }
    for (std::size_t document = 0; document + 1 < setup_.offsets.size(); ++document)
      std::iota(positions.begin() + setup_.offsets[document], positions.begin() + setup_.offsets[document + 1], 0);
    upload(ops_, tokens, state.mb.tokens);
    upload(ops_, targets, state.mb.targets);
    upload(ops_, positions, state.mb.positions);
    upload(ops_, ids, state.mb.rows);
    upload(ops_, std::vector{0.125f}, state.mb.loss_scale);
    upload(ops_, std::vector{0.25f}, state.mb.aux_scale);
    if (state.mb.offsets) upload(ops_, setup_.offsets, state.mb.offsets);
  }
}

// Initial weights of a run are ones, zeros and small numbers, which hide mistakes; these are all of size one or so.
void BlockHarness::fill_params() {
  std::uint64_t seed = 300;
  for (const Param* param : params_.by_name()) {
    const bool around_one = param->spec.init.kind == Init::Kind::ones;
    const auto size = static_cast<std::size_t>(count(param->spec.shape));
    set_value(*param, normals(size, ++seed, around_one ? 0.2 : 0.3, around_one ? 1 : 0));
  }
}

// Lifetimes that an action may not take from point at replay, as in the engine; end_call() finds what is left there.
Stash BlockHarness::stash_of(MicrobatchState& state, Act act) {
  auto& [f_to_b, f_to_w, b_to_w] = *state.stash;
  Arena& replay = memory_->replay.arena;
  return {act == Act::W ? replay : f_to_b.arena, f_to_w.arena, act == Act::F ? replay : b_to_w.arena, replay};
}

void BlockHarness::execute(const Schedule& schedule) {
  reset();
  execute_on(ops_, schedule);
  for (Bucket& bucket : params_.buckets()) params_.complete_grads(ops_, bucket);
}

void BlockHarness::reset() {
  for (Bucket& bucket : params_.buckets()) {
    spoil(bucket.grad);
    params_.empty_grads(ops_, bucket);
  }
  for (const Tensor& sums : {states_[0].mb.expert_counts, states_[0].mb.aux_losses})
    if (sums) ops_(FillArgs{.out = sums, .value = 0});
  for (std::size_t i = 0; i < microbatches; ++i) {
    if (setup_.has_x) write(normals(static_cast<std::size_t>(count(states_[i].x.shape)), 20 + i, 1), states_[i].x);
    if (setup_.has_y) write(normals(static_cast<std::size_t>(count(states_[i].dy.shape)), 30 + i, 1), states_[i].dy);
  }
}

void BlockHarness::execute_on(Ops& ops, const Schedule& schedule) {
  for (const auto& action : schedule) {
    MicrobatchState& state = states_[static_cast<std::size_t>(action.microbatch)];
    if (action.act == Act::F) run_f(ops, state);
    if (action.act == Act::B || action.act == Act::BW) run_b(ops, state);
    if (action.act == Act::W || action.act == Act::BW) run_w(ops, state);
  }
}

void BlockHarness::run_f(Ops& ops, MicrobatchState& state) {
  Stash stash = stash_of(state, Act::F);
  Run run{ops, stash, memory_->scratch.arena, state.mb};
  block_->forward(run, *state.saved, state.x, state.y);
  end_call();
  if (memory_ == &measured_ || !setup_.has_y) return;
  state.y_values = read(state.y);
  spoil(state.y);
}

void BlockHarness::run_b(Ops& ops, MicrobatchState& state) {
  Stash stash = stash_of(state, Act::B);
  Run run{ops, stash, memory_->scratch.arena, state.mb};
  block_->backward_input(run, *state.saved, state.x, state.dy, state.dx);
  end_call();
  give_back(state, Life::f_to_b);
  if (memory_ != &measured_ && setup_.has_x) spoil(state.x);
}

void BlockHarness::run_w(Ops& ops, MicrobatchState& state) {
  Stash stash = stash_of(state, Act::W);
  Run run{ops, stash, memory_->scratch.arena, state.mb};
  block_->backward_weight(run, *state.saved, state.dy);
  end_call();
  give_back(state, Life::f_to_w);
  give_back(state, Life::b_to_w);
}

void BlockHarness::end_call() {
  memory_->scratch.arena.rewind(0);
  spoil(memory_->scratch);
  require(memory_->replay.arena.mark() == 0, "a call left something in replay");
  spoil(memory_->replay);
}

void BlockHarness::give_back(MicrobatchState& state, Life life) {
  Region& region = (*state.stash)[static_cast<std::size_t>(life)];
  region.arena.rewind(0);
  spoil(region);
}

// All bits set is NaN in every float type.
void BlockHarness::spoil(const Region& region) {
  if (!region.bytes.empty()) std::memset(region.bytes.data(), 0xFF, region.bytes.size());
}

void BlockHarness::spoil(const Tensor& tensor) const { std::memset(tensor.data, 0xFF, tensor.bytes()); }

void BlockHarness::forward_only() {
  run_f(ops_, states_[0]);
  for (const Life life : {Life::f_to_b, Life::f_to_w, Life::b_to_w}) give_back(states_[0], life);
}

double BlockHarness::loss_of_forward() {
  forward_only();
  double loss = 0;
  if (setup_.has_y) {
    const auto weight = read(states_[0].dy);
    for (std::size_t i = 0; i < weight.size(); ++i) loss += static_cast<double>(y(0)[i]) * weight[i];
  }
  if (!setup_.has_y || setup_.has_loss) {
    for (const float token_loss : token_loss(0)) loss += static_cast<double>(token_loss) * 0.125;
  }
  return loss;
}

std::vector<std::int32_t> BlockHarness::tokens(int microbatch) const {
  return test::download<std::int32_t>(ops_, states_[static_cast<std::size_t>(microbatch)].mb.tokens);
}

std::vector<std::int32_t> BlockHarness::targets(int microbatch) const {
  return test::download<std::int32_t>(ops_, states_[static_cast<std::size_t>(microbatch)].mb.targets);
}

std::vector<std::int32_t> BlockHarness::expert_counts() const {
  return test::download<std::int32_t>(ops_, states_[0].mb.expert_counts);
}

void BlockHarness::set_x(const std::vector<float>& values) { write(values, states_[0].x); }

std::vector<float> BlockHarness::everything() const {
  std::vector<float> all;
  for (const auto& state : states_) {
    append(all, setup_.has_y ? state.y_values : read(state.mb.token_loss));
    if (setup_.has_loss) append(all, read(state.mb.token_loss));
    if (setup_.has_x) append(all, read(state.dx));
  }
  for (const Param* param : params_.by_name())
    if (param->grad) append(all, read(param->grad));
  return all;
}

bool BlockHarness::peaks_as_planned() const {
  const auto same = [](const Region& a, const Region& b) { return a.arena.peak() == b.arena.peak(); };
  bool equal = same(measured_.replay, real_.replay) && scratch_as_planned();
  for (std::size_t i = 0; i < microbatches; ++i)
    for (std::size_t life = 0; life < 3; ++life) equal = equal && same(measured_.stash[i][life], real_.stash[i][life]);
  return equal;
}

bool BlockHarness::stashes_are_empty() const {
  return std::all_of(real_.stash.begin(), real_.stash.end(), [](const auto& regions) {
    return std::all_of(regions.begin(), regions.end(), [](const Region& region) { return region.arena.mark() == 0; });
  });
}

std::vector<float> BlockHarness::read(const Tensor& from) const { return tera::download(ops_, from); }

void BlockHarness::write(const std::vector<float>& values, const Tensor& to) { tera::upload(ops_, values, to); }

}  // namespace tera::test
