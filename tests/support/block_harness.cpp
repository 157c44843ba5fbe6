#include "tests/support/block_harness.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tera/backend/cpu/workspace.h"
#include "tera/backend/plan/plan_ops.h"
#include "tera/base/error.h"
#include "tests/support/fill.h"

namespace tera::test {
namespace {

std::vector<float> normals(std::size_t size, std::uint64_t seed, double scale, double mean = 0) {
  const Values values = normal_values(shape(static_cast<std::int64_t>(size)), seed, scale, mean);
  return {values.begin(), values.end()};
}

template <class T>
void upload(Ops& ops, const std::vector<T>& values, const Tensor& to) {
  ops.from_host(std::as_bytes(std::span(values)), to);
}

std::vector<std::int32_t> download_ints(Ops& ops, const Tensor& from) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(count(from.shape)));
  ops.to_host(from, std::as_writable_bytes(std::span(values)));
  return values;
}

void append(std::vector<float>& to, const std::vector<float>& from) { to.insert(to.end(), from.begin(), from.end()); }

}  // namespace

BlockHarness::BlockHarness(const BlockSetup& setup)
    : setup_(setup),
      ops_(setup.threads, cpu::best_isa()),
      params_(setup.compute, setup.freeze),
      block_(setup.make(params_)) {
  params_.lay_out();
  for (auto& flight : flights_) flight.saved = block_->make_saved();
  bind(measured_);
  const cpu::CpuWorkspaceRules rules(setup_.threads);
  PlanOps plan_ops(rules);
  play_on(plan_ops, one_stage(microbatches));
  make_real();
  bind(real_);
  ops_.bind_workspace(device_.allocate(plan_ops.workspace_peak()));
  params_.fill_constants(ops_);
  fill_inputs();
  fill_params();
}

BlockHarness::Room BlockHarness::real_room(const Room& measured) {
  const auto bytes = device_.allocate(measured.arena.peak());
  return {Arena(bytes, "test"), bytes};
}

void BlockHarness::make_real() {
  real_ = {real_room(measured_.weights),
           real_room(measured_.constants),
           real_room(measured_.grads),
           real_room(measured_.inputs),
           real_room(measured_.replay),
           real_room(measured_.scratch),
           {}};
  for (std::size_t i = 0; i < microbatches; ++i)
    for (std::size_t life = 0; life < 3; ++life) real_.stash[i][life] = real_room(measured_.stash[i][life]);
}

void BlockHarness::bind(Memory& memory) {
  memory_ = &memory;
  params_.bind({memory.weights.arena, memory.constants.arena, &memory.weights.arena, &memory.grads.arena});
  bind_inputs(memory.inputs.arena);
  for (std::size_t i = 0; i < microbatches; ++i) flights_[i].stash = &memory.stash[i];
}

void BlockHarness::bind_inputs(Arena& arena) {
  const std::int64_t rows = setup_.batch * setup_.seq;
  Tensor counts, losses;
  if (setup_.experts > 0) {
    counts = arena.take(shape(1, setup_.experts), DType::i32, "expert_counts");
    losses = arena.take(shape(static_cast<int>(AuxLoss::count)), DType::f32, "aux_losses");
  }
  for (auto& flight : flights_) {
    const auto border = [&](bool there, const char* tag) {
      return there ? arena.take(shape(rows, setup_.hidden), setup_.compute, tag) : Tensor{};
    };
    flight.x = border(setup_.has_x, "x");
    flight.dx = border(setup_.has_x, "dx");
    flight.y = border(setup_.has_y, "y");
    flight.dy = border(setup_.has_y, "dy");
    flight.mb = {.tokens = arena.take(shape(rows), DType::i32, "tokens"),
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
      flight.mb.offsets = arena.take(shape(static_cast<std::int64_t>(setup_.offsets.size())), DType::i32, "offsets");
  }
}

void BlockHarness::fill_inputs() {
  const auto rows = static_cast<std::size_t>(setup_.batch * setup_.seq);
  for (std::size_t i = 0; i < microbatches; ++i) {
    Flight& flight = flights_[i];
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
    upload(ops_, tokens, flight.mb.tokens);
    upload(ops_, targets, flight.mb.targets);
    upload(ops_, positions, flight.mb.positions);
    upload(ops_, ids, flight.mb.rows);
    upload(ops_, std::vector{0.125f}, flight.mb.loss_scale);
    upload(ops_, std::vector{0.25f}, flight.mb.aux_scale);
    if (flight.mb.offsets) upload(ops_, setup_.offsets, flight.mb.offsets);
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
Stash BlockHarness::stash_of(Flight& flight, Act act) {
  auto& [f_to_b, f_to_w, b_to_w] = *flight.stash;
  Arena& replay = memory_->replay.arena;
  return {act == Act::W ? replay : f_to_b.arena, f_to_w.arena, act == Act::F ? replay : b_to_w.arena, replay};
}

void BlockHarness::play(const Schedule& schedule) {
  reset();
  play_on(ops_, schedule);
  for (Bucket& bucket : params_.buckets()) params_.complete_grads(ops_, bucket);
}

void BlockHarness::reset() {
  for (Bucket& bucket : params_.buckets()) {
    spoil(bucket.grad);
    params_.empty_grads(ops_, bucket);
  }
  for (const Tensor& sums : {flights_[0].mb.expert_counts, flights_[0].mb.aux_losses})
    if (sums) ops_.fill({.out = sums, .value = 0});
  for (std::size_t i = 0; i < microbatches; ++i) {
    if (setup_.has_x) write(normals(static_cast<std::size_t>(count(flights_[i].x.shape)), 20 + i, 1), flights_[i].x);
    if (setup_.has_y) write(normals(static_cast<std::size_t>(count(flights_[i].dy.shape)), 30 + i, 1), flights_[i].dy);
  }
}

void BlockHarness::play_on(Ops& ops, const Schedule& schedule) {
  for (const auto& action : schedule) {
    Flight& flight = flights_[static_cast<std::size_t>(action.microbatch)];
    if (action.act == Act::F) play_f(ops, flight);
    if (action.act == Act::B || action.act == Act::BW) play_b(ops, flight);
    if (action.act == Act::W || action.act == Act::BW) play_w(ops, flight);
  }
}

void BlockHarness::play_f(Ops& ops, Flight& flight) {
  Stash stash = stash_of(flight, Act::F);
  Run run{ops, stash, memory_->scratch.arena, flight.mb};
  block_->forward(run, *flight.saved, flight.x, flight.y);
  end_call();
  if (memory_ == &measured_ || !setup_.has_y) return;
  flight.y_values = read(flight.y);
  spoil(flight.y);
}

void BlockHarness::play_b(Ops& ops, Flight& flight) {
  Stash stash = stash_of(flight, Act::B);
  Run run{ops, stash, memory_->scratch.arena, flight.mb};
  block_->backward_input(run, *flight.saved, flight.x, flight.dy, flight.dx);
  end_call();
  give_back(flight, Life::f_to_b);
  if (memory_ != &measured_ && setup_.has_x) spoil(flight.x);
}

void BlockHarness::play_w(Ops& ops, Flight& flight) {
  Stash stash = stash_of(flight, Act::W);
  Run run{ops, stash, memory_->scratch.arena, flight.mb};
  block_->backward_weight(run, *flight.saved, flight.dy);
  end_call();
  give_back(flight, Life::f_to_w);
  give_back(flight, Life::b_to_w);
}

void BlockHarness::end_call() {
  memory_->scratch.arena.rewind(0);
  spoil(memory_->scratch);
  require(memory_->replay.arena.mark() == 0, "a call left something in replay");
  spoil(memory_->replay);
}

void BlockHarness::give_back(Flight& flight, Life life) {
  Room& room = (*flight.stash)[static_cast<std::size_t>(life)];
  room.arena.rewind(0);
  spoil(room);
}

// All bits set is NaN in every float type.
void BlockHarness::spoil(const Room& room) {
  if (!room.bytes.empty()) std::memset(room.bytes.data(), 0xFF, room.bytes.size());
}

void BlockHarness::spoil(const Tensor& tensor) const { std::memset(tensor.data, 0xFF, tensor.bytes()); }

void BlockHarness::forward_only() {
  play_f(ops_, flights_[0]);
  for (const Life life : {Life::f_to_b, Life::f_to_w, Life::b_to_w}) give_back(flights_[0], life);
}

double BlockHarness::loss_of_forward() {
  forward_only();
  double loss = 0;
  if (setup_.has_y) {
    const auto weight = read(flights_[0].dy);
    for (std::size_t i = 0; i < weight.size(); ++i) loss += static_cast<double>(y(0)[i]) * weight[i];
  }
  if (!setup_.has_y || setup_.has_loss) {
    for (const float token_loss : token_loss(0)) loss += static_cast<double>(token_loss) * 0.125;
  }
  return loss;
}

std::vector<std::int32_t> BlockHarness::tokens(int microbatch) const {
  return download_ints(ops_, flights_[static_cast<std::size_t>(microbatch)].mb.tokens);
}

std::vector<std::int32_t> BlockHarness::targets(int microbatch) const {
  return download_ints(ops_, flights_[static_cast<std::size_t>(microbatch)].mb.targets);
}

std::vector<std::int32_t> BlockHarness::expert_counts() const {
  return download_ints(ops_, flights_[0].mb.expert_counts);
}

void BlockHarness::set_x(const std::vector<float>& values) { write(values, flights_[0].x); }

std::vector<float> BlockHarness::everything() const {
  std::vector<float> all;
  for (const auto& flight : flights_) {
    append(all, setup_.has_y ? flight.y_values : read(flight.mb.token_loss));
    if (setup_.has_loss) append(all, read(flight.mb.token_loss));
    if (setup_.has_x) append(all, read(flight.dx));
  }
  for (const Param* param : params_.by_name())
    if (param->grad) append(all, read(param->grad));
  return all;
}

bool BlockHarness::peaks_as_planned() const {
  const auto same = [](const Room& a, const Room& b) { return a.arena.peak() == b.arena.peak(); };
  bool equal = same(measured_.replay, real_.replay) && scratch_as_planned();
  for (std::size_t i = 0; i < microbatches; ++i)
    for (std::size_t life = 0; life < 3; ++life) equal = equal && same(measured_.stash[i][life], real_.stash[i][life]);
  return equal;
}

bool BlockHarness::stashes_are_empty() const {
  return std::all_of(real_.stash.begin(), real_.stash.end(), [](const auto& rooms) {
    return std::all_of(rooms.begin(), rooms.end(), [](const Room& room) { return room.arena.mark() == 0; });
  });
}

std::vector<float> BlockHarness::read(const Tensor& from) const { return tera::download(ops_, from); }

void BlockHarness::write(const std::vector<float>& values, const Tensor& to) { tera::upload(ops_, values, to); }

}  // namespace tera::test
