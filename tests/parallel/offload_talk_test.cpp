// A trace of when activations are offloaded to the host, when they are prefetched and what waits for them.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/ops/copy.h"
#include "tera/pipeline/pipeline.h"

namespace tera::test {
namespace {

struct Log {
  void add(const std::string& word) { text += (text.empty() ? "" : " ") + word; }
  std::string text, latest;  // block that was forward
};

// "+out0.1" begins to offload what block 1 keeps of microbatch 0, "+in0.1" begins to prefetch it; "~in0.1" waits for
// that.
class TalkingOps final : public cpu::CpuOps {
 public:
  explicit TalkingOps(Log& log) : CpuOps(1, cpu::best_isa()), log_(log), beside_(log) {}

 private:
  struct Beside final : Timeline {
    explicit Beside(Log& to) : log(to) {}
    void finish(std::uint64_t id) override { log.add("~" + names.at(id - 1)); }
    CopyPoints post(const std::string& name) {
      names.push_back(name);
      log.add("+" + name);
      return {{}, {names.size(), this}};
    }
    Log& log;
    std::vector<std::string> names;
  };
  CopyPoints do_to_host_overlapped(const HostCopyArgs& args) override {
    at_[args.host.data()] = log_.latest;
    return beside_.post("out" + log_.latest);
  }
  CopyPoints do_from_host_overlapped(const HostCopyArgs& args) override {
    return beside_.post("in" + at_.at(args.host.data()));
  }

  Log& log_;
  Beside beside_;
  std::map<const std::byte*, std::string> at_;  // the data at an address of the host
};

struct Kept final : Saved {
  Tensor tensor;
};

class KeepingBlock final : public BlockOf<Kept> {
 public:
  KeepingBlock(Log& log, int number, Life life) : log_(log), number_(number), life_(life) {}
  const char* kind() const override { return "keeping"; }

 private:
  std::string name(const Run& run) const { return fmt::format("{}.{}", run.mb.batch, number_); }
  void f(Run& run, Kept& kept, const Tensor&, const Tensor&) override {
    kept.tensor = run.stash.take(life_, shape(100), DType::f32, "kept");
    log_.latest = name(run);
    log_.add("F" + name(run));
  }
  void b(Run& run, Kept&, const Tensor&, const Tensor&, const Tensor&) override { log_.add("B" + name(run)); }
  void w(Run& run, Kept&, const Tensor&) override { log_.add("W" + name(run)); }
  Log& log_;
  int number_;
  Life life_;
};

std::string talk(const Schedule& schedule, int number_of_blocks, Life life) {
  Log log;
  TalkingOps ops(log);
  cpu::CpuDevice device;
  std::vector<std::unique_ptr<Block>> blocks;
  for (int i = 0; i < number_of_blocks; ++i) blocks.push_back(std::make_unique<KeepingBlock>(log, i, life));
  Stage stage{.chunks = {blocks}, .training = plan_alone(schedule), .hidden = 4};
  (life == Life::f_to_b ? stage.offload.f_to_b : stage.offload.f_to_w).emplace_back("kept");
  StageMemory memory = StageMemory::measuring(stage).bind(
      [&](std::string_view name, std::size_t, const Arena&) { return Arena(device.allocate(1 << 14), name); });
  std::vector<std::int32_t> tokens(2);
  std::vector<MicroBatch> batch;
  for (int i = 0; i < stage.training.microbatches; ++i)
    batch.push_back({.tokens = make_tensor(tokens.data(), shape(2), DType::i32), .batch = i});
  Pipeline(ops, stage, memory).step(batch);
  return log.text;
}

// A block waits for a buffer when it writes it again, two blocks later, and for a prefetch when it reads it, one block
// later.
TEST(OffloadTalk, OneMicrobatchAtATime) {
  EXPECT_EQ(talk(one_stage(2), 4, Life::f_to_b),
            "F0.0 +out0.0 F0.1 +out0.1 ~out0.0 F0.2 +out0.2 ~out0.1 F0.3 +out0.3 "
            "B0.3 W0.3 +in0.1 B0.2 W0.2 ~in0.1 +in0.0 B0.1 W0.1 ~in0.0 B0.0 W0.0 "
            "F1.0 +out1.0 F1.1 +out1.1 ~out1.0 F1.2 +out1.2 ~out1.1 F1.3 +out1.3 "
            "B1.3 W1.3 +in1.1 B1.2 W1.2 ~in1.1 +in1.0 B1.1 W1.1 ~in1.0 B1.0 W1.0");
}

// The activations of the first block of a backward are prefetched while the last block of the forward before it
// computes.
TEST(OffloadTalk, SeveralInFlight) {
  using enum Act;
  EXPECT_EQ(talk({{F, 0}, {F, 1}, {BW, 0}, {BW, 1}}, 3, Life::f_to_b),
            "F0.0 +out0.0 F0.1 +out0.1 ~out0.0 F0.2 +out0.2 "
            "~out0.1 F1.0 +out1.0 ~out0.2 F1.1 +out1.1 ~out1.0 F1.2 +out1.2 "
            "+in0.2 ~in0.2 +in0.1 B0.2 W0.2 ~in0.1 +in0.0 B0.1 W0.1 ~in0.0 +in1.2 B0.0 W0.0 "
            "~in1.2 +in1.1 B1.2 W1.2 ~in1.1 +in1.0 B1.1 W1.1 ~in1.0 B1.0 W1.0");
}

// What W needs is prefetched once more when others have used the buffers since B.
TEST(OffloadTalk, WeightGradientsApart) {
  using enum Act;
  EXPECT_EQ(talk({{F, 0}, {B, 0}, {W, 0}}, 3, Life::f_to_w),
            "F0.0 +out0.0 F0.1 +out0.1 ~out0.0 F0.2 +out0.2 "
            "B0.2 +in0.0 B0.1 ~in0.0 B0.0 "
            "+in0.2 ~in0.2 W0.2 +in0.0 W0.1 ~in0.0 W0.0");
}

}  // namespace
}  // namespace tera::test
