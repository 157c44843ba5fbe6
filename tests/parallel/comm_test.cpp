// The shared body on a world of one and on ranks that are threads; and what run_threads and Groups add.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/comm/world.h"
#include "tera/ops/combine.h"
#include "tera/parallel/groups.h"
#include "tests/parallel/comm_body.h"
#include "tests/support/count_allocations.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

constexpr ThreadCommOptions long_timeout{.timeout = 60s};

void on_threads(int ranks, void (*check)(const CommSubject&)) {
  run_threads(ranks, long_timeout, [&](RankHandle& rank_handle) {
    cpu::CpuOps ops(1, cpu::best_isa());
    cpu::CpuDevice device;
    const auto world = rank_handle.join(ops);
    ASSERT_EQ(world->rank(), rank_handle.rank());
    ASSERT_EQ(world->size(), ranks);
    check({*world, ops, device});
  });
}

TEST(SelfComm, DoesWhatAnyCommDoes) {
  cpu::CpuOps ops(1, cpu::best_isa());
  cpu::CpuDevice device;
  const auto comm = make_self_comm(ops);
  check_everything({*comm, ops, device});
}

TEST(SelfComm, CopiesNothingOfOneView) {
  cpu::CpuOps ops(1, cpu::best_isa());
  const auto comm = make_self_comm(ops);
  // No memory of ours: a copy would end the process.
  const Tensor far = make_tensor(reinterpret_cast<void*>(0x10), shape(4, 2), DType::f32);
  const Ticket after{3, &ops};
  for (const Ticket& done : {comm->all_gather(far, far, after), comm->reduce_scatter(far, far, Reduce::mean, after),
                             comm->all_reduce(far, Reduce::sum, after), comm->broadcast(far, 0, after)})
    EXPECT_EQ(done.id, 3u);  // nothing to wait for but what was there before
}

class ThreadCommTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadCommTest, testing::Values(1, 2, 3, 4, 8));
TEST_P(ThreadCommTest, Reductions) { on_threads(GetParam(), check_reductions); }
TEST_P(ThreadCommTest, Movements) { on_threads(GetParam(), check_movements); }
TEST_P(ThreadCommTest, Exchanges) { on_threads(GetParam(), check_exchanges); }
TEST_P(ThreadCommTest, Tickets) { on_threads(GetParam(), check_tickets); }
TEST_P(ThreadCommTest, Splits) { on_threads(GetParam(), check_splits); }
TEST_P(ThreadCommTest, SmallCalls) { on_threads(GetParam(), check_small_calls); }
TEST_P(ThreadCommTest, Rejected) { on_threads(GetParam(), check_rejected); }
TEST_P(ThreadCommTest, Unwinding) { on_threads(GetParam(), check_unwinding); }

TEST(ThreadComm, AnExchangeReturnsBeforeItsOtherSideCame) {
  std::atomic<bool> posted{false};
  run_threads(2, long_timeout, [&](RankHandle& rank_handle) {
    cpu::CpuOps ops(1, cpu::best_isa());
    const auto world = rank_handle.join(ops);
    float sent = static_cast<float>(rank_handle.rank()) + 1, received = 0;
    const Transfer both[] = {{make_tensor(&sent, shape(1), DType::f32), 1 - rank_handle.rank(), true},
                             {make_tensor(&received, shape(1), DType::f32), 1 - rank_handle.rank(), false}};
    if (rank_handle.rank() == 1) posted.wait(false);  // would never end if rank 0 waited for us
    const Ticket done = world->exchange(both, ops.record());
    posted = true;
    posted.notify_all();
    ops.finish(done);
    EXPECT_EQ(received, rank_handle.rank() == 0 ? 2.0f : 1.0f);
    world->barrier();
  });
}

// Its queue made the copy, so its tickets must stay valid until the other rank has read them.
TEST(ThreadComm, ARankThatIsDoneWaitsForThoseWhoNeedItsQueue) {
  std::atomic<bool> posted{false}, queue_is_gone{false};
  run_threads(2, long_timeout, [&](RankHandle& rank_handle) {
    auto ops = std::make_unique<cpu::CpuOps>(1, cpu::best_isa());
    auto world = rank_handle.join(*ops);
    float value = 3;
    const Transfer transfer{make_tensor(&value, shape(1), DType::f32), 1 - rank_handle.rank(), rank_handle.rank() == 0};
    if (rank_handle.rank() == 0) posted.wait(false);
    const Ticket done = world->exchange({&transfer, 1}, ops->record());
    posted = true;
    posted.notify_all();
    if (rank_handle.rank() == 1) {
      std::this_thread::sleep_for(50ms);
      EXPECT_FALSE(queue_is_gone);
      ops->finish(done);
    }
    world.reset();
    if (rank_handle.rank() == 0) queue_is_gone = true;
  });
}

TEST(ThreadComm, AllocatesNothingAfterSetUp) {
  if (!can_count_allocations()) GTEST_SKIP() << "a sanitizer has its own allocator";
  std::int64_t allocations = -1;
  run_threads(4, long_timeout, [&](RankHandle& rank_handle) {
    cpu::CpuOps ops(1, cpu::best_isa());
    cpu::CpuDevice device;
    const auto world = rank_handle.join(ops);
    const auto pair = world->split(rank_handle.rank() / 2, 0, "pair");
    const std::span<std::byte> memory = device.allocate(4096);
    const Tensor full = make_tensor(memory.data(), shape(4, 8), DType::bf16), shard = full.rows(0, 1);
    const Tensor other = make_tensor(memory.data() + 2048, shape(4, 8), DType::bf16);
    const std::int64_t rows[] = {1, 1, 1, 1};
    world->barrier();
    if (rank_handle.rank() == 0) start_counting_allocations();
    world->barrier();
    for (int round = 0; round < 100; ++round) {
      world->all_reduce(full, Reduce::mean);
      world->all_gather(shard, other);
      world->reduce_scatter(other, shard, Reduce::max);
      world->all_to_all(full, other, rows, rows);
      pair->broadcast(full, round % 2);
      const int next = (rank_handle.rank() + 1) % 4, before = (rank_handle.rank() + 3) % 4;
      const Transfer ring[] = {{shard, next, true}, {other.rows(1, 2), before, false}};
      ops.wait(world->exchange(ring));
    }
    world->barrier();
    if (rank_handle.rank() == 0) allocations = stop_counting_allocations();
    world->barrier();
  });
  EXPECT_EQ(allocations, 0);
}

TEST(ThreadComm, TheSameBitsOnEveryRankAndInEveryRun) {
  std::vector<std::vector<std::uint16_t>> results(6);
  for (std::size_t run = 0; run < 2; ++run)
    run_threads(3, long_timeout, [&](RankHandle& rank_handle) {
      cpu::CpuOps ops(1 + static_cast<int>(run), cpu::best_isa());  // more threads in the second
      const auto world = rank_handle.join(ops);
      std::vector<std::uint16_t>& mine = results[run * 3 + static_cast<std::size_t>(rank_handle.rank())];
      for (std::size_t i = 0; i < 40000; ++i)
        mine.push_back(
            to_bf16(static_cast<float>((i * 7919 + static_cast<std::size_t>(rank_handle.rank()) * 131) % 1009)).bits);
      world->all_reduce(make_tensor(mine.data(), shape(mine.size()), DType::bf16), Reduce::sum);
    });
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

// Every group of a mesh has the members that the plan says, in its order.
TEST(Groups, AreThoseOfThePlan) {
  const MeshPlan plan({.world = 8, .tp = 2, .cp = 1, .pp = 2, .ep = 2, .etp = 1});
  run_threads(8, long_timeout, [&](RankHandle& rank_handle) {
    cpu::CpuOps ops(1, cpu::best_isa());
    const auto world = rank_handle.join(ops);
    Groups groups(plan, rank_handle.rank());
    groups.join(*world);
    const auto check = [&](Comm& group, Axis axis) {
      SCOPED_TRACE(fmt::format("{} of rank {}", name_of(axis), rank_handle.rank()));
      std::int32_t me = rank_handle.rank();
      std::vector<int> members(static_cast<std::size_t>(group.size()));
      group.all_gather(make_tensor(&me, shape(1), DType::i32),
                       make_tensor(members.data(), shape(group.size()), DType::i32));
      EXPECT_EQ(members, plan.members(axis, rank_handle.rank()));
      EXPECT_EQ(group.name(), name_of(axis));
    };
    const auto all = groups.all();
    constexpr std::array axes{Axis::world, Axis::tp,  Axis::cp,     Axis::dp,  Axis::dp_cp, Axis::pp,
                              Axis::ep,    Axis::etp, Axis::etp_ep, Axis::edp, Axis::embed};
    for (std::size_t i = 0; i < axes.size(); ++i) check(*all[i], axes[i]);
  });
}

struct CountingTimeline final : Timeline {
  void finish(std::uint64_t) override { ++finished; }
  int finished = 0;
};

TEST(OpsQueue, WaitsForOtherTimelinesOnly) {
  cpu::CpuOps ops(1, cpu::best_isa());
  CountingTimeline other;
  ops.wait(Ticket{});
  ops.wait(ops.record());
  ops.wait({4, &other});
  EXPECT_EQ(other.finished, 1);
  ops.finish(Ticket{5, &other});
  EXPECT_EQ(other.finished, 2);
  EXPECT_EQ(ops.record().timeline, &ops);
}

}  // namespace
}  // namespace tera::test
