// The engine with ranks as threads: whatever the schedule, the placement and the timing, losses and gradients are
// bitwise those of plain loops over the blocks.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "tera/base/rng.h"
#include "tera/comm/world.h"
#include "tests/nn/tiny_shape.h"
#include "tests/parallel/pipeline_rank.h"
#include "tests/support/count_allocations.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

constexpr ThreadCommOptions long_timeout{.timeout = 60s};

ModelShape with_six_layers(ModelShape shape) {
  shape.num_layers = 6;
  shape.window.assign(6, 0);
  return shape;
}

ModelShape six_layers() { return with_six_layers(tiny_shape()); }

ModelShape gpt_with_dropout() {
  ModelShape shape = with_six_layers(tiny_gpt_shape());
  shape.tied_embeddings = false;
  shape.hidden_dropout = shape.attention_dropout = 0.1f;
  return shape;
}

ModelShape recomputed() {
  ModelShape shape = six_layers();
  shape.recompute.full = true;
  return shape;
}

struct Results {
  std::vector<float> gradients, losses, evaluation;
};

Results plain_results(const ModelShape& shape, int microbatches) {
  GlobalModel model(shape, microbatches);
  Results results;
  run_plainly(model);
  results.gradients = model.gradients();
  results.losses = model.losses();
  model.reset();
  evaluate_plainly(model);
  results.evaluation = model.losses();
  return results;
}

// Tensors of other ranks are zero, so adding changes no bit.
void add(std::vector<float>& to, const std::vector<float>& from) {
  to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

using MakeHooks = std::unique_ptr<ParamHooks> (*)(int rank);
std::unique_ptr<ParamHooks> nobody(int) { return std::make_unique<ParamHooks>(); }

Results pipeline_results(const ModelShape& shape, const PipelineCase& one, MakeHooks make_hooks = nobody) {
  const int ranks = one.training.placement.stages;
  std::vector<Results> of_ranks(static_cast<std::size_t>(ranks));
  run_threads(ranks, long_timeout, [&](RankHandle& rank_handle) {
    Results& mine = of_ranks[static_cast<std::size_t>(rank_handle.rank())];
    cpu::CpuOps comm_ops(1, cpu::best_isa());
    const auto pp = rank_handle.join(comm_ops);
    PipelineRank rank(shape, one, rank_handle.rank(), pp.get());
    const auto hooks = make_hooks(rank_handle.rank());
    rank.train(*hooks);
    rank.model().reset();
    rank.evaluate(*hooks);
    mine.evaluation = rank.model().losses();
    rank.model().reset();
    rank.train(*hooks);  // a second time: nothing is left over
    mine.gradients = rank.model().gradients();
    mine.losses = rank.model().losses();
    EXPECT_EQ(rank.wrong_memory(), "") << "rank " << rank_handle.rank();
    EXPECT_EQ(rank.uneven_pools(), "") << "rank " << rank_handle.rank();
    pp->barrier();
  });
  Results sum;
  for (const Results& each : of_ranks) {
    add(sum.gradients, each.gradients);
    add(sum.losses, each.losses);
    add(sum.evaluation, each.evaluation);
  }
  return sum;
}

void expect_equal(const std::vector<float>& got, const std::vector<float>& want, std::string_view what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], want[i]) << what << " " << i << " of " << want.size();
}

// The reference are plain loops, which run once for each number of microbatches.
class Expect {
 public:
  explicit Expect(const ModelShape& shape) : shape_(shape) {}

  void plain(const PipelineCase& one, MakeHooks make_hooks = nobody) {
    SCOPED_TRACE(one.describe());
    const auto [want, is_new] = plain_.try_emplace(one.training.microbatches);
    if (is_new) want->second = plain_results(shape_, one.training.microbatches);
    const Results got = pipeline_results(shape_, one, make_hooks);
    expect_equal(got.losses, want->second.losses, "loss");
    expect_equal(got.gradients, want->second.gradients, "gradient");
    expect_equal(got.evaluation, want->second.evaluation, "evaluation");
  }

 private:
  ModelShape shape_;
  std::map<int, Results> plain_;
};

std::vector<PipelineSchedule> schedules(int stages, int microbatches) {
  return {one_f_one_b(stages, microbatches),
          zero_bubble_h1(stages, microbatches),
          zero_bubble_v(stages, microbatches),
          interleaved(stages, 2, microbatches, stages),
          interleaved(stages, 3, microbatches, stages + 1),
          interleaved(stages, 2, microbatches, 2 * stages)};
}

class PipelineEngine : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, PipelineEngine, testing::Values(1, 2, 3, 4));

TEST_P(PipelineEngine, EveryScheduleRunsAsPlainLoops) {
  Expect expect(six_layers());
  for (const int microbatches : {1, 2, 3, 8})
    for (const PipelineSchedule& schedule : schedules(GetParam(), microbatches)) expect.plain({.training = schedule});
}

TEST_P(PipelineEngine, WithoutOverlapTheBitsAreTheSame) {
  Expect expect(six_layers());
  for (const int microbatches : {2, 5})
    for (const PipelineSchedule& schedule : schedules(GetParam(), microbatches))
      expect.plain({.training = schedule, .overlap = false});
}

TEST_P(PipelineEngine, DropoutAndRecomputeKeepTheirBits) {
  for (const ModelShape& shape : {gpt_with_dropout(), recomputed()}) {
    Expect expect(shape);
    for (const PipelineSchedule& schedule : schedules(GetParam(), 3)) expect.plain({.training = schedule});
  }
}

// Sleeps before blocks, for another time on every rank.
struct Jitter final : ParamHooks {
  explicit Jitter(int rank) : rank_(rank) {}
  void before(int, Act, int) override {
    const auto bits = philox({99}, static_cast<std::uint64_t>(rank_), ++calls_);
    if (bits[0] % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(bits[1] % 500));
  }
  int rank_;
  std::uint64_t calls_ = 0;
};

TEST_P(PipelineEngine, TimingChangesNoBit) {
  const MakeHooks jitter = [](int rank) -> std::unique_ptr<ParamHooks> { return std::make_unique<Jitter>(rank); };
  Expect expect(six_layers());
  for (const bool overlap : {true, false})
    for (const PipelineSchedule& schedule : schedules(GetParam(), 6))
      expect.plain({.training = schedule, .overlap = overlap}, jitter);
}

TEST(PipelineEngineLayouts, UnevenAndEmptyStages) {
  Expect expect(six_layers());
  expect.plain({.training = one_f_one_b(3, 4), .layers = {0, 6, 0}});
  expect.plain({.training = one_f_one_b(4, 5), .layers = {3, 0, 2, 1}});
  expect.plain({.training = zero_bubble_h1(4, 6), .layers = {2, 0, 0, 4}});
  expect.plain({.training = zero_bubble_v(2, 5), .layers = {1, 0, 0, 5}});
  expect.plain({.training = zero_bubble_v(3, 4), .layers = {1, 2, 0, 2, 1, 0}});
  expect.plain({.training = interleaved(2, 3, 4, 2), .layers = {0, 2, 0, 3, 1, 0}});
}

TEST(PipelineEngineLayouts, NoBlocksAtTheEndsAreRefused) {
  GlobalModel model(tiny_shape(), 1);
  Stage stage{.chunks = {{}}, .training = plan_alone(one_stage(1)), .hidden = model.shape.hidden};
  StageMemory memory = StageMemory::measuring(stage);
  EXPECT_THROW(Pipeline(model.ops, stage, memory), Error);
}

TEST(PipelineEngineLayouts, WhatHasNoPlanIsRefused) {
  GlobalModel model(tiny_shape(), 2);
  Stage stage{.chunks = {model.blocks}, .evaluation = plan_forward_alone(), .hidden = model.shape.hidden};
  StageMemory memory = StageMemory::measuring(stage);
  Pipeline pipeline(model.ops, stage, memory);
  EXPECT_THROW(pipeline.step({}), Error);
  EXPECT_THROW(pipeline.forward(model.evaluation_batch), Error);  // two microbatches, planned for one
}

TEST(PipelineEngineLayouts, AGroupThatIsNotThePlansIsRefused) {
  GlobalModel model(tiny_shape(), 2);
  const auto alone = make_self_comm(model.ops);
  for (Comm* pp : {static_cast<Comm*>(nullptr), alone.get()}) {
    Stage stage{.chunks = {ChunkBlocks(model.blocks).first(2)},
                .training = make_stage_plan(one_f_one_b(2, 2), 0),
                .hidden = model.shape.hidden,
                .pp = pp};
    StageMemory memory = StageMemory::measuring(stage);
    EXPECT_THROW(Pipeline(model.ops, stage, memory), Error);
  }
}

TEST(PipelineEngineMemory, AStepAllocatesNothing) {
  if (!can_count_allocations()) GTEST_SKIP() << "a sanitizer has its own allocator";
  for (const PipelineSchedule& schedule : schedules(3, 5)) {
    std::int64_t allocations = -1;
    run_threads(3, long_timeout, [&](RankHandle& rank_handle) {
      cpu::CpuOps comm_ops(1, cpu::best_isa());
      const auto pp = rank_handle.join(comm_ops);
      PipelineRank rank(six_layers(), {.training = schedule}, rank_handle.rank(), pp.get());
      ParamHooks hooks;
      rank.train(hooks);
      rank.evaluate(hooks);
      pp->barrier();
      if (rank_handle.rank() == 0) start_counting_allocations();
      pp->barrier();
      rank.train(hooks);
      rank.evaluate(hooks);
      pp->barrier();
      if (rank_handle.rank() == 0) allocations = stop_counting_allocations();
      pp->barrier();
    });
    EXPECT_EQ(allocations, 0);
  }
}

// Both ends of every message are counted in the rehearsal, on every rank.
TEST(PipelineEngineMemory, ARehearsalCountsEveryMessage) {
  struct {
    PipelineSchedule schedule;
    int boundaries;  // between ranks, in one direction
  } cases[] = {{one_f_one_b(1, 4), 0},       {one_f_one_b(3, 4), 2},   {interleaved(2, 3, 4, 2), 5},
               {interleaved(1, 3, 4, 1), 0}, {zero_bubble_v(3, 4), 4}, {zero_bubble_v(1, 4), 0}};
  for (const auto& [schedule, boundaries] : cases) {
    std::int64_t messages = 0;
    for (int rank = 0; rank < schedule.placement.stages; ++rank)
      messages += PipelineRank(six_layers(), {.training = schedule}, rank, nullptr).planned_messages();
    EXPECT_EQ(messages, 2 * boundaries * 4 * 3);  // two ends; y and dx in training, y in evaluation
  }
}

// The hooks see every call in the order of the actions: the announced next call is the next one, and the gradients of a
// block are complete once.
struct Call {
  int block;
  Act act;
  int next;
  bool last;
  bool operator==(const Call&) const = default;
};
void PrintTo(const Call& call, std::ostream* out) {
  *out << fmt::format("[block {} act {} next {} last {}]", call.block, static_cast<int>(call.act), call.next,
                      call.last);
}

struct Recorder final : ParamHooks {
  void before(int block, Act act, int next) override {
    EXPECT_FALSE(inside);
    inside = true;
    calls.push_back({block, act, next, false});
  }
  void after(int block, Act act, bool last) override {
    EXPECT_TRUE(inside && block == calls.back().block && act == calls.back().act);
    inside = false;
    calls.back().last = last;
  }
  bool inside = false;
  std::vector<Call> calls;
};

std::vector<Call> expected_calls(const Stage& stage, const StagePlan& plan) {
  std::vector<Call> calls;
  std::map<int, std::size_t> last_weights;  // index of the last W of each block
  for (const Action& action : plan.actions) {
    int first = 0;
    for (int chunk = 0; chunk < action.chunk; ++chunk)
      first += static_cast<int>(stage.chunks[static_cast<std::size_t>(chunk)].size());
    const int size = static_cast<int>(stage.chunks[static_cast<std::size_t>(action.chunk)].size());
    for (int i = 0; i < size; ++i) {
      const int block = first + (action.act == Act::F ? i : size - 1 - i);
      if (action.act == Act::W || action.act == Act::BW) last_weights[block] = calls.size();
      calls.push_back({block, action.act, -1, false});
    }
  }
  for (std::size_t i = 0; i + 1 < calls.size(); ++i) calls[i].next = calls[i + 1].block;
  for (const auto& [block, at] : last_weights) calls[at].last = true;
  return calls;
}

TEST(PipelineEngineHooks, SeesEveryCallAndWhatComesNext) {
  for (const PipelineSchedule& schedule : schedules(2, 4))
    run_threads(2, long_timeout, [&](RankHandle& rank_handle) {
      cpu::CpuOps comm_ops(1, cpu::best_isa());
      const auto pp = rank_handle.join(comm_ops);
      const std::vector<int> layers =
          schedule.placement.virtual_stages() == 4 ? std::vector{3, 0, 1, 2} : std::vector<int>{};
      PipelineRank rank(six_layers(), {.training = schedule, .layers = layers}, rank_handle.rank(), pp.get());
      Recorder training, evaluation;
      rank.train(training);
      rank.evaluate(evaluation);
      EXPECT_EQ(training.calls, expected_calls(rank.stage(), rank.stage().training));
      EXPECT_EQ(evaluation.calls, expected_calls(rank.stage(), rank.stage().evaluation));
      pp->barrier();
    });
}

}  // namespace
}  // namespace tera::test
