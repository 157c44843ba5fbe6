// A trace of when rows are sent to experts of other ranks and what waits for them, on one of two expert-parallel ranks.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/nn/ffn/moe.h"
#include "tera/nn/layer.h"
#include "tera/nn/sublayer.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/gemm.h"
#include "tera/ops/grouped_gemm.h"
#include "tera/pipeline/pipeline.h"
#include "tests/parallel/stub_comm.h"

namespace tera::test {
namespace {

constexpr std::int64_t tokens = 4, hidden = 8, ffn = 16, experts = 6, shared_ffn = 10;

struct Log {
  void add(const std::string& word) { text += (text.empty() ? "" : " ") + word; }
  std::string text;
};

// GEMMs are only recorded in the trace: those of experts, by their weights. All else is computed, of zeros.
class TalkingOps final : public cpu::CpuOps {
 public:
  explicit TalkingOps(Log& log) : CpuOps(1, cpu::best_isa()), log_(log) {}

 private:
  using CpuOps::execute;
  void execute(const GemmArgs& args) override {
    const Tensor& weight = args.trans_a ? args.out : args.b;  // W writes its gradient, F and B read it
    const std::string who = args.trans_a ? "W_shared" : "shared";
    if (weight.shape == shape(2 * shared_ffn, hidden)) log_.add(who + "_up");
    if (weight.shape == shape(hidden, shared_ffn)) log_.add(who + "_down");
  }
  void execute(const GroupedGemmArgs& args) override { log_.add(args.b.dim(1) == 2 * ffn ? "up" : "down"); }
  void execute(const GroupedWeightGradientArgs& args) override {
    log_.add(args.out.dim(1) == 2 * ffn ? "W_up" : "W_down");
  }
  Log& log_;
};

// "+rows3" sends rows as the third such call, "~rows3" waits for it. The trace leaves out what is sent with them
// (numbers of experts, weights). The other rank sends and receives nothing.
class TalkingComm final : public StubComm, public Timeline {
 public:
  explicit TalkingComm(Log& log) : StubComm(0, 2), log_(log) {}
  void finish(std::uint64_t id) override { log_.add(fmt::format("~rows{}", id)); }

 private:
  Ticket do_all_to_all(const Tensor& in, const Tensor&, std::span<const std::int64_t>, std::span<const std::int64_t>,
                       Ticket) override {
    return in.dim(1) == hidden ? note_send() : Ticket{};
  }
  Ticket do_all_gather(const Tensor& shard, const Tensor&, Ticket) override {
    return shard.shape == shape(tokens, hidden) ? note_send() : Ticket{};
  }
  Ticket do_reduce_scatter(const Tensor&, const Tensor& shard, Reduce, Ticket) override {
    return shard.shape == shape(tokens, hidden) ? note_send() : Ticket{};
  }
  Ticket note_send() {
    log_.add(fmt::format("+rows{}", ++calls_));
    return {calls_, this};
  }
  Log& log_;
  std::uint64_t calls_ = 0;
};

struct NothingSaved final : Saved {};

// A block in place of attention and, without a trace, of embedding and head.
class TalkingMixer final : public BlockOf<NothingSaved> {
 public:
  explicit TalkingMixer(Log* log) : log_(log) {}
  const char* kind() const override { return "talking"; }

 private:
  void f(Run& run, NothingSaved&, const Tensor&, const Tensor& y) override { say(run, "F", y); }
  void b(Run& run, NothingSaved&, const Tensor&, const Tensor&, const Tensor& dx) override { say(run, "B", dx); }
  void w(Run& run, NothingSaved&, const Tensor&) override { say(run, "W", {}); }
  void say(Run& run, const char* act, const Tensor& makes) {
    if (log_) log_->add(fmt::format("{}{}", act, run.mb.batch));
    if (makes) run.ops(FillArgs{.out = makes, .value = 0});
  }
  Log* log_;
};

MoeSpec moe_spec(TokenDispatcher dispatcher) {
  MoeSpec spec;
  spec.name = "mlp";
  spec.router = {.name = "mlp.gate", .hidden = hidden, .experts = experts, .rule = {.topk = 2}};
  spec.experts = {.name = "mlp.experts",
                  .prefix = "mlp.experts.",
                  .up = {".gate_proj", ".up_proj"},
                  .down = ".down_proj",
                  .experts = experts,
                  .hidden = hidden,
                  .ffn = ffn};
  spec.dispatcher = dispatcher;
  return spec;
}

SharedExpertSpec shared_expert() {
  return {
      .up = {.name = "mlp.shared.gate_up",
             .in = hidden,
             .out = {{.name = "mlp.shared.gate", .rows = shared_ffn}, {.name = "mlp.shared.up", .rows = shared_ffn}},
             .split = Split::out},
      .down = {.name = "mlp.shared.down",
               .in = shared_ffn,
               .out = {{.name = "mlp.shared.down", .rows = hidden}},
               .split = Split::in}};
}

// One layer and a schedule of one stage.
std::string talk(const MoeSpec& spec, const PipelineSchedule& schedule) {
  Log log;
  TalkingOps ops(log);
  TalkingComm comm(log);
  cpu::CpuDevice device;
  const auto make_arena = [&](std::string_view name) { return Arena(device.allocate(1 << 16), name); };
  ParamStore params(DType::f32, {});
  std::vector<std::unique_ptr<Block>> blocks;
  blocks.push_back(std::make_unique<TalkingMixer>(nullptr));
  std::vector<std::unique_ptr<Block>> layer;
  layer.push_back(std::make_unique<TalkingMixer>(&log));
  const TensorParallel tp;
  const ExpertParallel parallel{.ep = &comm, .group = &comm};
  const ContextParallel cp;
  layer.push_back(std::make_unique<Sublayer>(SublayerSpec{.norm = NormSpec{.name = "norm", .size = hidden},
                                                          .post_norm = {},
                                                          .branches = {{.name = "mlp", .branch = spec, .norm = {}}}},
                                             BuildContext{params, tp, parallel, cp}));
  blocks.push_back(std::make_unique<Chain>("layer", std::move(layer)));
  blocks.push_back(std::make_unique<TalkingMixer>(nullptr));
  params.lay_out();
  Arena weights = make_arena("weights"), constants = make_arena("constants"), grads = make_arena("gradients");
  params.bind({weights, constants, &weights, &grads});
  ops.bind_workspace(device.allocate(1 << 16));

  const Stage stage{.chunks = {blocks}, .training = make_stage_plan(schedule, 0), .hidden = hidden};
  StageMemory memory = StageMemory::measuring(stage).bind(
      [&](std::string_view name, std::size_t, const Arena&) { return make_arena(name); });
  Arena inputs = make_arena("inputs");
  const Tensor ids = inputs.take(shape(tokens), DType::i32, "tokens");
  const Tensor rows = inputs.take(shape(tokens), DType::i64, "rows");
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(2 * (experts + 1)));
  std::vector<MicroBatch> batch;
  for (int i = 0; i < schedule.microbatches; ++i)
    batch.push_back({.tokens = ids, .rows = rows, .batch = i, .expert_offsets = offsets});
  Pipeline(ops, stage, memory).step(batch);
  return log.text;
}

constexpr std::array both{TokenDispatcher::allgather, TokenDispatcher::alltoall};

TEST(ExpertTalk, WithoutOverlapRowsAreWaitedForAtOnce) {
  for (const TokenDispatcher dispatcher : both) {
    MoeSpec spec = moe_spec(dispatcher);
    spec.shared = shared_expert();
    EXPECT_EQ(talk(spec, one_f_one_b(1, 1)),
              "F0 shared_up shared_down +rows1 ~rows1 up down +rows2 ~rows2 "
              "+rows3 ~rows3 down up +rows4 ~rows4 shared_down shared_up B0 "
              "W_shared_down W_shared_up +rows5 ~rows5 W_down +rows6 ~rows6 W_up W0");
  }
}

// Rows are in flight while the shared expert is computed, in each direction and in W.
TEST(ExpertTalk, TheSharedExpertComputesWhileRowsAreInFlight) {
  for (const TokenDispatcher dispatcher : both) {
    MoeSpec spec = moe_spec(dispatcher);
    spec.shared = shared_expert();
    spec.overlap_shared = true;
    EXPECT_EQ(talk(spec, one_f_one_b(1, 1)),
              "F0 +rows1 shared_up ~rows1 up down +rows2 shared_down ~rows2 "
              "+rows3 shared_down ~rows3 down up +rows4 shared_up ~rows4 B0 "
              "+rows5 W_shared_down W_shared_up ~rows5 W_down +rows6 ~rows6 W_up W0");
  }
}

// Between each "+" and its "~" in a pair there is work of the other microbatch, or in W of the same. Rows of the
// gradient are sent once for B and W.
TEST(ExpertTalk, TwoMicrobatchesAreComputedInTurns) {
  for (const TokenDispatcher dispatcher : both) {
    MoeSpec spec = moe_spec(dispatcher);
    spec.overlap_calls = true;
    EXPECT_EQ(talk(spec, one_f_one_b(1, 3, /*together=*/true)),
              "F0 +rows1 ~rows1 up down +rows2 ~rows2 "
              "+rows3 F1 ~rows3 down +rows4 up +rows5 ~rows4 up down +rows6 ~rows5 B0 "
              "+rows7 W_down ~rows7 W_up W0 ~rows6 "
              "+rows8 F2 ~rows8 down +rows9 up +rows10 ~rows9 up down +rows11 ~rows10 B1 "
              "+rows12 W_down ~rows12 W_up W1 ~rows11 "
              "+rows13 ~rows13 down up +rows14 ~rows14 B2 +rows15 W_down ~rows15 W_up W2");
  }
}

// Where W runs later, nothing is kept for it: both kinds of rows are sent before either is needed.
TEST(ExpertTalk, WeightGradientsApart) {
  using enum Act;
  MoeSpec spec = moe_spec(TokenDispatcher::alltoall);
  spec.overlap_calls = true;
  const PipelineSchedule schedule{
      .placement = {},
      .microbatches = 2,
      .ranks = {{{F, 0}, {.act = F, .microbatch = 1, .with_next = true}, {B, 0}, {W, 0}, {B, 1}, {W, 1}}}};
  EXPECT_EQ(talk(spec, schedule),
            "F0 +rows1 ~rows1 up down +rows2 ~rows2 "
            "+rows3 F1 ~rows3 down +rows4 up +rows5 ~rows4 up down +rows6 ~rows5 B0 ~rows6 "
            "+rows7 +rows8 ~rows7 W_down ~rows8 W_up W0 "
            "+rows9 ~rows9 down up +rows10 ~rows10 B1 "
            "+rows11 +rows12 ~rows11 W_down ~rows12 W_up W1");
}

}  // namespace
}  // namespace tera::test
