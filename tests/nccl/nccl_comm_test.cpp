// The body that every Comm must pass, on ranks that are processes and share one GPU (NCCL_HOSTID differs for each), and
// what these ranks promise beyond it.

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/ops/combine.h"
#include "tests/nccl/nccl_main.h"
#include "tests/parallel/comm_body.h"
#include "tests/parallel/comm_values.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

// The rendezvous takes seconds, so all tests share one.
struct OnGpu {
  cuda::CudaParts gpu = cuda::make_cuda({});
  std::unique_ptr<Comm> world = nccl_rank_handle().join(*gpu.ops);
};

class NcclComm : public testing::Test {
 protected:
  static void SetUpTestSuite() { shared() = std::make_unique<OnGpu>(); }
  static void TearDownTestSuite() { shared().reset(); }
  static std::unique_ptr<OnGpu>& shared() {
    static std::unique_ptr<OnGpu> one;
    return one;
  }
  void run(void (*check)(const CommSubject&)) {
    check({world, ops, device, /*rank_order=*/false, /*small_rounds=*/50});
    ops.finish(ops.record());
    world.barrier();
  }

  Ops& ops = *shared()->gpu.ops;
  Device& device = *shared()->gpu.device;
  Comm& world = *shared()->world;
};

TEST_F(NcclComm, Reductions) { run(check_reductions); }
TEST_F(NcclComm, Movements) { run(check_movements); }
TEST_F(NcclComm, Exchanges) { run(check_exchanges); }
TEST_F(NcclComm, Tickets) { run(check_tickets); }
TEST_F(NcclComm, Splits) { run(check_splits); }
TEST_F(NcclComm, SmallCalls) { run(check_small_calls); }
TEST_F(NcclComm, Rejected) { run(check_rejected); }
TEST_F(NcclComm, Unwinding) { run(check_unwinding); }

// The host calls a collective while it waits for a queue.
TEST_F(NcclComm, AQueueJoinsOnce) {
  const std::string message = message_of<Error>([&] { nccl_rank_handle().join(ops); });
  EXPECT_TRUE(contains(message, "joins ranks that it has joined already")) << message;
  run(check_movements);
}

// A call returns before it is done, and the queue goes on meanwhile: what waits for it is the ticket alone.
TEST_F(NcclComm, TheHostDoesNotWait) {
  CommTensors tensors({world, ops, device}, std::size_t{256} << 20);
  const Tensor large = tensors.garbage(shape(std::int64_t{16} << 20), DType::f32);
  ops.finish(world.all_reduce(large, Reduce::max, ops.record()));  // connections are made by the first call
  world.barrier();
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  Ticket last;
  for (int i = 0; i < 10; ++i) last = world.all_reduce(large, Reduce::max, ops.record());
  const auto called = Clock::now();
  ops.finish(last);
  const auto done = Clock::now();
  EXPECT_LT((called - begin) * 2, done - begin) << "640 MiB were reduced while the host asked for it";
  EXPECT_EQ(tensors.read(large.rows(0, 3)), Values(3, 77));
}

// Sums of one layout have the same bits every time, and on every rank.
TEST_F(NcclComm, SameBitsAgain) {
  CommTensors tensors({world, ops, device}, std::size_t{64} << 20);
  const std::int64_t n = 1'000'003;
  const Values mine = input_of_rank(world.rank(), n, DType::f32, 11);
  Values first;
  for (int round = 0; round < 5; ++round) {
    const Tensor x = tensors.make(shape(n), DType::f32, mine);
    ops.finish(world.all_reduce(x, Reduce::sum, ops.record()));
    const Values sum = tensors.read(x);
    if (round == 0) first = sum;
    EXPECT_EQ(sum, first) << "round " << round;
    tensors.clear();
  }
  const Tensor sum = tensors.make(shape(n), DType::f32, first), of_first = tensors.make(shape(n), DType::f32, first);
  ops.finish(world.broadcast(of_first, 0, ops.record()));
  EXPECT_EQ(tensors.read(of_first), tensors.read(sum));
}

// Groups work side by side, each on a stream of its own.
TEST_F(NcclComm, GroupsSideBySide) {
  const auto all = world.split(0, 0, "all"), reversed = world.split(0, -world.rank(), "turned");
  CommTensors tensors({world, ops, device}, std::size_t{64} << 20);
  const std::int64_t n = 200'000;
  std::vector<Tensor> sums;
  std::vector<Ticket> tickets;
  for (int i = 0; i < 12; ++i) {
    sums.push_back(tensors.make(shape(n), DType::f32, Values(static_cast<std::size_t>(n), world.rank() + i)));
    Comm& comm = i % 3 == 0 ? world : i % 3 == 1 ? *all : *reversed;
    tickets.push_back(comm.all_reduce(sums.back(), Reduce::sum, ops.record()));
  }
  for (std::size_t i = tickets.size(); i-- > 0;) ops.finish(tickets[i]);
  const int ranks = world.size();
  for (int i = 0; i < 12; ++i)
    EXPECT_EQ(tensors.read(sums[static_cast<std::size_t>(i)].rows(n - 1, n)),
              Values(1, ranks * (ranks - 1) / 2 + ranks * i))
        << i;
}

// Calls of one group do not wait for those of another: rank 0 comes to the first when the second is done.
TEST_F(NcclComm, AGroupDoesNotWaitForAnother) {
  const auto first = world.split(0, 0, "first"), second = world.split(0, -world.rank(), "second");
  CommTensors tensors({world, ops, device}, std::size_t{64} << 20);
  const Tensor a = tensors.garbage(shape(1000), DType::f32), b = tensors.garbage(shape(1000), DType::f32);
  const auto start_first = [&] { return first->all_reduce(a, Reduce::max, ops.record()); };
  const auto start_second = [&] { return second->all_reduce(b, Reduce::max, ops.record()); };
  ops.finish(start_first());  // connections are made by the first call
  ops.finish(start_second());
  world.barrier();
  Ticket late;
  if (world.rank() > 0) late = start_first();
  ops.finish(start_second());
  if (world.rank() == 0) late = start_first();
  ops.finish(late);
}

}  // namespace
}  // namespace tera::test
