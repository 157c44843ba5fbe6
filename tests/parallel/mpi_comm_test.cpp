// The shared body on ranks that are processes, and what they promise beyond it. Started by mpirun; every rank runs
// every test.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/ops/combine.h"
#include "tests/parallel/comm_body.h"
#include "tests/parallel/comm_values.h"
#include "tests/parallel/mpi_main.h"
#include "tests/support/count_allocations.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

class MpiComm : public testing::Test {
 protected:
  MpiComm() : ops(1, cpu::best_isa()), joined(mpi_rank_handle().join(ops)), world(*joined) {}
  void run(void (*check)(const CommSubject&)) { check({world, ops, device}); }

  cpu::CpuDevice device;
  cpu::CpuOps ops;
  std::unique_ptr<Comm> joined;
  Comm& world;
};

TEST_F(MpiComm, Reductions) { run(check_reductions); }
TEST_F(MpiComm, Movements) { run(check_movements); }
TEST_F(MpiComm, Exchanges) { run(check_exchanges); }
TEST_F(MpiComm, Tickets) { run(check_tickets); }
TEST_F(MpiComm, Splits) { run(check_splits); }
TEST_F(MpiComm, SmallCalls) { run(check_small_calls); }
TEST_F(MpiComm, Rejected) { run(check_rejected); }
TEST_F(MpiComm, Unwinding) { run(check_unwinding); }

// The input of a rank in the comparison with threads.
template <class T>
std::vector<T> input_of_rank(int rank, std::size_t n) {
  std::vector<T> values(n);
  for (std::size_t i = 0; i < n; ++i)
    to_storage(1e-3 * static_cast<double>((i * 7919 + static_cast<std::size_t>(rank) * 131) % 10007) - 4.7, values[i]);
  return values;
}

template <class T>
std::vector<T> reduced_by(Comm& comm, Ops& ops, std::size_t n, DType dtype, Reduce how) {
  std::vector<T> values = input_of_rank<T>(comm.rank(), n), shard(n / static_cast<std::size_t>(comm.size()));
  ops.finish(comm.all_reduce(make_tensor(values.data(), shape(n), dtype), how, ops.record()));
  ops.finish(comm.reduce_scatter(make_tensor(values.data(), shape(n), dtype),
                                 make_tensor(shard.data(), shape(shard.size()), dtype), how, ops.record()));
  values.insert(values.end(), shard.begin(), shard.end());
  return values;
}

template <class T>
void expect_same_as_threads(Comm& world, Ops& local_ops, DType dtype, Reduce how, std::size_t n) {
  const auto mine = reduced_by<T>(world, local_ops, n, dtype, how);
  std::vector<T> threads;
  run_threads(world.size(), {.timeout = 60s}, [&](RankHandle& rank_handle) {
    cpu::CpuOps ops(1, cpu::best_isa());
    const auto comm = rank_handle.join(ops);
    auto result = reduced_by<T>(*comm, ops, n, dtype, how);
    if (rank_handle.rank() == world.rank()) threads = std::move(result);
  });
  ASSERT_EQ(mine.size(), threads.size());
  EXPECT_EQ(std::memcmp(mine.data(), threads.data(), mine.size() * sizeof(T)), 0)
      << name_of(dtype) << " " << name_of(how) << " x " << n;
}

// Sizes: large enough for several pieces of a sum, small enough for one message, and between.
TEST_F(MpiComm, TheSameBitsAsThreads) {
  const std::size_t ranks = static_cast<std::size_t>(world.size());
  for (std::size_t n : {8 * ranks, 1000 * ranks})
    for (Reduce how : {Reduce::sum, Reduce::mean, Reduce::max}) {
      expect_same_as_threads<float>(world, ops, DType::f32, how, n);
      expect_same_as_threads<BFloat16>(world, ops, DType::bf16, how, n);
      expect_same_as_threads<Float16>(world, ops, DType::f16, how, n);
    }
  expect_same_as_threads<float>(world, ops, DType::f32, Reduce::mean, 200'000 * ranks);
  expect_same_as_threads<BFloat16>(world, ops, DType::bf16, Reduce::sum, 300'000 * ranks);
}

// Several calls of several groups are in flight at once, large and small, and finished in another order.
TEST_F(MpiComm, ManyCallsInFlight) {
  const int me = world.rank(), ranks = world.size();
  const auto reversed = world.split(0, -me, "turned");
  constexpr std::int64_t n = 200'000;
  std::vector<std::vector<float>> values(12, std::vector<float>(n)), gathered;
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::fill(values[i].begin(), values[i].end(), static_cast<float>(me + 1) * static_cast<float>(i));
    Comm& comm = i % 2 == 0 ? world : *reversed;
    const std::int64_t length = i % 3 == 0 ? 10 : n;
    tickets.push_back(comm.all_reduce(make_tensor(values[i].data(), shape(length), DType::f32), Reduce::sum));
  }
  std::vector<float> out(n, static_cast<float>(me)), in(n);
  const Transfer ring[] = {{make_tensor(out.data(), shape(n), DType::f32), (me + 1) % ranks, true},
                           {make_tensor(in.data(), shape(n), DType::f32), (me + ranks - 1) % ranks, false}};
  ops.finish(world.exchange(ring));
  EXPECT_EQ(in.back(), static_cast<float>((me + ranks - 1) % ranks));
  for (std::size_t i = values.size(); i-- > 0;) ops.finish(tickets[i]);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float sum = static_cast<float>(ranks * (ranks + 1) / 2) * static_cast<float>(i);
    EXPECT_EQ(values[i].front(), sum) << i;
    EXPECT_EQ(values[i][9], sum) << i;
    EXPECT_EQ(values[i].back(), i % 3 == 0 ? static_cast<float>(me + 1) * static_cast<float>(i) : sum) << i;
  }
}

// A group keeps a limited number of calls in flight: one more waits for the oldest.
TEST_F(MpiComm, MoreCallsThanMayBeInFlight) {
  std::vector<double> values(300, 1.0);
  Ticket last;
  for (double& value : values) last = world.all_reduce(make_tensor(&value, shape(1), DType::f64), Reduce::sum);
  ops.finish(last);
  for (double value : values) EXPECT_EQ(value, world.size());
}

// One of many calls in flight together: every rank can compute its result.
struct RandomCall {
  std::vector<double> values, out;
  Ticket done;
  int kind = 0;
  std::size_t group = 0;
  std::int64_t n = 0;
};

double value_at(int rank, std::size_t call, std::int64_t i) {
  return static_cast<double>(rank * 1000 + static_cast<int>(call)) + static_cast<double>(i % 17);
}

void begin(RandomCall& call, std::size_t number, Comm& comm, Ops& ops) {
  const std::int64_t n = call.n, ranks = comm.size();
  call.values.resize(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) call.values[static_cast<std::size_t>(i)] = value_at(comm.rank(), number, i);
  call.out.assign(static_cast<std::size_t>(n * ranks), -1);
  const Tensor mine = make_tensor(call.values.data(), shape(n), DType::f64);
  const Tensor all = make_tensor(call.out.data(), shape(n * ranks), DType::f64);
  const auto next = static_cast<int>((comm.rank() + 1) % ranks),
             before = static_cast<int>((comm.rank() + ranks - 1) % ranks);
  const Transfer ring[] = {{all.rows(0, n), before, false}, {mine, next, true}};
  switch (call.kind) {
    case 0: call.done = comm.all_reduce(mine, Reduce::sum, ops.record()); return;
    case 1: call.done = comm.all_gather(mine, all, ops.record()); return;
    case 2: call.done = comm.broadcast(mine, static_cast<int>(number) % comm.size(), ops.record()); return;
    default: call.done = comm.exchange(ring, ops.record());
  }
}

void check(const RandomCall& call, std::size_t number, const Comm& comm) {
  SCOPED_TRACE(fmt::format("call {} kind {} x {} of {}", number, call.kind, call.n, comm.name()));
  const int ranks = comm.size(), before = (comm.rank() + ranks - 1) % ranks;
  for (std::int64_t i = 0; i < call.n; ++i) {
    double sum = 0;
    for (int r = 0; r < ranks; ++r) sum += value_at(r, number, i);
    const double value = call.values[static_cast<std::size_t>(i)], out = call.out[static_cast<std::size_t>(i)];
    switch (call.kind) {
      case 0: ASSERT_EQ(value, sum) << i; break;
      case 1:
        for (int r = 0; r < ranks; ++r)
          ASSERT_EQ(call.out[static_cast<std::size_t>(r * call.n + i)], value_at(r, number, i)) << i;
        break;
      case 2: ASSERT_EQ(value, value_at(static_cast<int>(number) % ranks, number, i)) << i; break;
      default: ASSERT_EQ(out, value_at(before, number, i)) << i;
    }
  }
}

// Calls of all kinds and sizes in three groups are finished in another order than begun, with random delays on each
// rank.
TEST_F(MpiComm, RandomCalls) {
  const auto reversed = world.split(0, -world.rank(), "turned"), half = world.split(world.rank() % 2, 0, "half");
  Comm* const groups[] = {&world, reversed.get(), half.get()};
  std::uint64_t state = 12345, own = static_cast<std::uint64_t>(world.rank()) + 1;
  const auto next = [](std::uint64_t& s) { return (s = s * 6364136223846793005u + 1442695040888963407u) >> 33; };
  constexpr std::int64_t sizes[] = {0, 1, 100, 225, 250, 260, 3000, 40'000, 90'000};
  for (int round = 0; round < 12; ++round) {
    std::vector<RandomCall> calls(1 + next(state) % 25);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      calls[i].kind = static_cast<int>(next(state) % 4);
      calls[i].group = next(state) % 3;
      calls[i].n = sizes[next(state) % std::size(sizes)];
      begin(calls[i], i, *groups[calls[i].group], ops);
      if (next(own) % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(next(own) % 2000));
    }
    const std::size_t first = next(own) % calls.size();
    for (std::size_t k = 0; k < calls.size(); ++k) {
      const std::size_t i = (first + k * 7) % calls.size();  // any order; some are waited for twice
      ops.finish(calls[i].done);
      ops.finish(calls[k].done);
      check(calls[i], i, *groups[calls[i].group]);
    }
  }
}

// Rank 0 is busy (here: sleeps) as soon as it has called; the others have their sums long before it is done with that.
TEST_F(MpiComm, CallsGoOnWhileARankIsBusy) {
  if (world.size() == 1) GTEST_SKIP() << "there are no others";
  std::vector<float> values(1 << 20, 1.0f);
  world.barrier();
  const Ticket done = world.all_reduce(make_tensor(values.data(), shape(values.size()), DType::f32), Reduce::sum);
  const auto begin = std::chrono::steady_clock::now();
  if (world.rank() == 0) std::this_thread::sleep_for(1s);
  ops.finish(done);
  if (world.rank() != 0) {
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 800ms);
  }
  EXPECT_EQ(values.back(), static_cast<float>(world.size()));
  world.barrier();
}

TEST_F(MpiComm, AllocatesNothingAfterSetUp) {
  if (!can_count_allocations()) GTEST_SKIP() << "a sanitizer has its own allocator";
  const int me = world.rank(), ranks = world.size();
  const auto pair = world.split(me / 2, 0, "pair");
  std::vector<float> large(1 << 18), full(static_cast<std::size_t>(ranks) * 64);
  const Tensor all = make_tensor(full.data(), shape(ranks, 64), DType::f32), mine = all.rows(me, me + 1);
  const Tensor big = make_tensor(large.data(), shape(large.size()), DType::f32);
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks), 1);
  std::vector<float> other(full.size());
  const Tensor copy = make_tensor(other.data(), all.shape, DType::f32);
  std::int64_t allocations = 0;
  for (int phase = 0; phase < 2; ++phase) {  // MPI has its own set-up: the first calls of each kind
    world.barrier();
    start_counting_allocations();
    for (int round = 0; round < 20; ++round) {
      ops.wait(world.all_reduce(big, Reduce::max));
      ops.wait(world.all_gather(mine, all));
      ops.wait(world.reduce_scatter(all, mine, Reduce::mean));
      ops.wait(world.all_to_all(all, copy, rows, rows));
      ops.wait(pair->broadcast(big, round % pair->size()));
      const Transfer ring[] = {{mine, (me + 1) % ranks, true}, {copy.rows(0, 1), (me + ranks - 1) % ranks, false}};
      ops.wait(world.exchange(ring));
    }
    allocations = stop_counting_allocations();
    world.barrier();
  }
  // MPI may still allocate memory of its own for bytes that come before their receive is posted; ours would be at least
  // one allocation for each of 120 calls.
  EXPECT_LE(allocations, 8);
}

}  // namespace
}  // namespace tera::test
