// What the engine promises to blocks, seen from inside: x until B, dy until W, the right microbatch, the right shape;
// for every schedule, with microbatches of different lengths and rows shared by two ranks.

#include <gtest/gtest.h>

#include <utility>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/comm/world.h"
#include "tera/ops/copy.h"
#include "tera/pipeline/pipeline.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t hidden = 5;
constexpr int row_shards = 2, max_blocks = 32;

// Which block and which microbatch.
float x_of(int block, const MicroBatch& mb) { return static_cast<float>(mb.batch * max_blocks + block); }
float dy_of(int block, const MicroBatch& mb) { return -x_of(block + 1, mb); }

struct ProbeSaved final : Saved {
  int calls = 0;  // 1 after F, 2 after B, 0 again after W
};

// Knows what it must be given, and gives what the next one must get.
class Probe final : public BlockOf<ProbeSaved> {
 public:
  Probe(int number, int blocks) : number_(number), first_(number == 0), last_(number + 1 == blocks) {}
  const char* kind() const override { return "probe"; }

 private:
  void f(Run& run, ProbeSaved& saved, const Tensor& x, const Tensor& y) override {
    const bool in_order = !run.mb.training || std::exchange(saved.calls, 1) == 0;
    EXPECT_TRUE(in_order);
    expect(x, !first_, x_of(number_, run.mb), run.mb);
    write(run, y, !last_, x_of(number_ + 1, run.mb));
    kept(run, Life::f_to_b);
    kept(run, Life::f_to_w);
  }
  void b(Run& run, ProbeSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override {
    EXPECT_EQ(std::exchange(saved.calls, 2), 1);
    expect(x, !first_, x_of(number_, run.mb), run.mb);
    expect(dy, !last_, dy_of(number_, run.mb), run.mb);
    write(run, dx, !first_, dy_of(number_ - 1, run.mb));
    kept(run, Life::b_to_w);
  }
  void w(Run& run, ProbeSaved& saved, const Tensor& dy) override {
    EXPECT_EQ(std::exchange(saved.calls, 0), 2);
    expect(dy, !last_, dy_of(number_, run.mb), run.mb);
  }

  static void kept(Run& run, Life life) { run.stash.take(life, shape(3), DType::f32, "kept"); }

  void expect(const Tensor& tensor, bool present, float value, const MicroBatch& mb) const {
    ASSERT_EQ(static_cast<bool>(tensor), present);
    if (!present) return;
    ASSERT_EQ(tensor.shape, shape(mb.tokens.dim(0) / row_shards, hidden));
    const float* values = tensor.as<float>();
    for (std::int64_t i = 0; i < count(tensor.shape); ++i) ASSERT_EQ(values[i], value) << "block " << number_;
  }
  void write(Run& run, const Tensor& tensor, bool present, float value) const {
    ASSERT_EQ(static_cast<bool>(tensor), present);
    if (present) run.ops(FillArgs{.out = tensor, .value = value});
  }

  int number_;
  bool first_, last_;
};

// Blocks per virtual stage: 1, 2, none, 1, 2, ...; the ends have some.
std::vector<int> blocks_per_stage(int stages) {
  std::vector<int> blocks;
  for (int i = 0; i < stages; ++i) blocks.push_back(i + 1 == stages ? 1 : (i + 1) % 3);
  return blocks;
}

void run_probes(const PipelineSchedule& schedule, RankHandle& rank_handle, bool overlap) {
  cpu::CpuOps ops(1, cpu::best_isa());
  cpu::CpuDevice device;
  const auto pp = rank_handle.join(ops);
  const Placement& placement = schedule.placement;
  const std::vector<int> counts = blocks_per_stage(placement.virtual_stages());
  int all = 0, number = 0;
  for (const int count : counts) all += count;
  std::vector<std::vector<std::unique_ptr<Block>>> blocks(static_cast<std::size_t>(placement.chunks));
  for (int stage = 0; stage < placement.virtual_stages(); ++stage)
    for (int i = 0; i < counts[static_cast<std::size_t>(stage)]; ++i, ++number)
      if (placement.rank_of(stage) == rank_handle.rank())
        blocks[static_cast<std::size_t>(placement.chunk_of(stage))].push_back(std::make_unique<Probe>(number, all));

  std::vector<std::int32_t> tokens(32);
  std::vector<MicroBatch> batch, evaluation;
  for (int i = 0; i < schedule.microbatches; ++i) {
    batch.push_back(
        {.tokens = make_tensor(tokens.data(), shape(row_shards * (1 + i * 5 % 3)), DType::i32), .batch = i});
    evaluation.push_back(batch.back());
    evaluation.back().training = false;
  }
  Stage stage{.chunks = {blocks.begin(), blocks.end()},
              .training = make_stage_plan(schedule, rank_handle.rank()),
              .evaluation = make_stage_plan(forward_only(placement, schedule.microbatches), rank_handle.rank()),
              .hidden = hidden,
              .row_shards = row_shards,
              .pp = pp.get(),
              .overlap_p2p = overlap};
  StageMemory memory = StageMemory::measuring(stage).bind(
      [&](std::string_view name, std::size_t, const Arena&) { return Arena(device.allocate(1 << 16), name); });
  Pipeline pipeline(ops, stage, memory);
  for (int round = 0; round < 2; ++round) {
    pipeline.step(batch);
    pipeline.forward(evaluation);
  }
  pp->barrier();
}

class PipelineRules : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, PipelineRules, testing::Values(1, 2, 3, 4));

TEST_P(PipelineRules, BlocksGetWhatIsTheirs) {
  const int stages = GetParam();
  for (const int microbatches : {1, 3, 7, 15})
    for (const bool overlap : {true, false})
      for (const PipelineSchedule& schedule :
           {one_f_one_b(stages, microbatches), zero_bubble_h1(stages, microbatches),
            zero_bubble_v(stages, microbatches), interleaved(stages, 2, microbatches, stages),
            interleaved(stages, 3, microbatches, stages + 2), interleaved(stages, 4, microbatches, 2 * stages)})
        run_threads(stages, {.timeout = 60s},
                    [&](RankHandle& rank_handle) { run_probes(schedule, rank_handle, overlap); });
}

}  // namespace
}  // namespace tera::test
