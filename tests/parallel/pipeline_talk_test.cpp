// A trace of when a rank posts transfers and waits for them: the middle rank of three.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/pipeline/pipeline.h"
#include "tests/parallel/stub_comm.h"

namespace tera::test {
namespace {

struct Log {
  void add(const std::string& word) { text += (text.empty() ? "" : " ") + word; }
  std::string text;
};

// "+y0" posts the send of y of microbatch 0, "~y0" waits for it. The other ranks receive and send at once.
class TalkingComm final : public StubComm, public Timeline {
 public:
  explicit TalkingComm(Log& log) : StubComm(1, 3), log_(log) {}
  void finish(std::uint64_t id) override { log_.add("~" + names_.at(id)); }

 private:
  Ticket do_exchange(std::span<const Transfer> transfers, Ticket) override {
    const Transfer& only = transfers.front();
    const bool forward = only.send == (only.peer == 2);
    const std::string_view name = forward ? (only.send ? "y" : "x") : (only.send ? "dx" : "dy");
    int& next = next_[static_cast<std::size_t>(only.peer + (only.send ? 1 : 0))];
    names_.push_back(fmt::format("{}{}", name, next++));
    log_.add("+" + names_.back());
    return {names_.size() - 1, this};
  }
  Log& log_;
  std::vector<std::string> names_;
  std::array<int, 4> next_{};  // per peer and direction
};

struct NothingSaved final : Saved {};

class TalkingBlock final : public BlockOf<NothingSaved> {
 public:
  explicit TalkingBlock(Log& log) : log_(log) {}
  const char* kind() const override { return "talking"; }

 private:
  void f(Run& run, NothingSaved&, const Tensor&, const Tensor&) override { log_.add(fmt::format("F{}", run.mb.batch)); }
  void b(Run& run, NothingSaved&, const Tensor&, const Tensor&, const Tensor&) override {
    log_.add(fmt::format("B{}", run.mb.batch));
  }
  void w(Run& run, NothingSaved&, const Tensor&) override { log_.add(fmt::format("W{}", run.mb.batch)); }
  Log& log_;
};

std::string talk(const PipelineSchedule& schedule, bool overlap) {
  cpu::CpuOps ops(1, cpu::best_isa());
  cpu::CpuDevice device;
  Log log;
  TalkingComm comm(log);
  std::vector<std::unique_ptr<Block>> blocks;
  blocks.push_back(std::make_unique<TalkingBlock>(log));
  const Stage stage{
      .chunks = {blocks}, .training = make_stage_plan(schedule, 1), .hidden = 4, .pp = &comm, .overlap_p2p = overlap};
  StageMemory memory = StageMemory::measuring(stage).bind(
      [&](std::string_view name, std::size_t, const Arena&) { return Arena(device.allocate(1 << 14), name); });
  std::vector<std::int32_t> tokens(2);
  std::vector<MicroBatch> batch;
  for (int i = 0; i < schedule.microbatches; ++i)
    batch.push_back({.tokens = make_tensor(tokens.data(), shape(2), DType::i32), .batch = i});
  Pipeline(ops, stage, memory).step(batch);
  return log.text;
}

// A receive is posted one action ahead of the sender's and waited for where its data is read; a send is waited for
// where its buffer is filled again, and at the end.
TEST(PipelineTalk, WithOverlapOnlyWhatIsNeededIsWaitedFor) {
  EXPECT_EQ(talk(one_f_one_b(3, 3), true),
            "+x0 +x1 ~x0 F0 "
            "+y0 +x2 ~x1 ~y0 F1 "
            "+y1 +dy0 ~dy0 B0 W0 "
            "+dx0 ~x2 ~y1 F2 "
            "+y2 +dy1 ~dy1 ~dx0 B1 W1 "
            "+dx1 +dy2 ~dy2 ~dx1 B2 W2 "
            "+dx2 ~y2 ~dx2");
  EXPECT_EQ(talk(zero_bubble_h1(3, 3), true),
            "+x0 +x1 ~x0 F0 "
            "+y0 +x2 ~x1 ~y0 F1 "
            "+y1 +dy0 ~dy0 B0 "
            "+dx0 ~x2 ~y1 F2 "
            "+y2 +dy1 ~dy1 ~dx0 B1 "
            "+dx1 +dy2 W0 "
            "~dy2 ~dx1 B2 "
            "+dx2 W1 W2 ~y2 ~dx2");
}

TEST(PipelineTalk, WithoutOverlapEverySendIsWaitedForAtOnce) {
  EXPECT_EQ(talk(one_f_one_b(3, 3), false),
            "+x0 +x1 ~x0 F0 "
            "+y0 +x2 ~y0 ~x1 ~y0 F1 "
            "+y1 +dy0 ~y1 ~dy0 B0 W0 "
            "+dx0 ~dx0 ~x2 ~y1 F2 "
            "+y2 +dy1 ~y2 ~dy1 ~dx0 B1 W1 "
            "+dx1 +dy2 ~dx1 ~dy2 ~dx1 B2 W2 "
            "+dx2 ~dx2 ~y2 ~dx2");
}

}  // namespace
}  // namespace tera::test
