// nccl_failing WAY SECONDS: a rank on a GPU that fails in the way of that name while others wait for it in calls of
// NCCL, and gives up after so many seconds. For nccl_failure_test.

#include <fmt/core.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/comm/nccl/make_nccl.h"
#include "tera/ops/combine.h"
#include "tera/train/launch.h"
#include "tests/parallel/comm_values.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

struct Rank {
  Comm& world;
  Ops& ops;
  Tensor x;  // [1000], f32
  std::chrono::duration<double> timeout;
  int rank = world.rank();

  void sum(Comm& comm) { ops.finish(comm.all_reduce(x, Reduce::max, ops.record())); }
  // Sends to the next rank and receives from the one before.
  void pass_on(Comm& comm) {
    const int next = (comm.rank() + 1) % comm.size(), before = (comm.rank() + comm.size() - 1) % comm.size();
    const Transfer transfers[] = {{x.rows(0, 500), next, true}, {x.rows(500, 1000), before, false}};
    ops.finish(comm.exchange(transfers, ops.record()));
  }
};

void signalled(Rank& r, int signal) {
  if (r.rank == 1) raise(signal);
  for (;;) r.sum(r.world);
}

void killed_in_exchange(Rank& r) {
  if (r.rank == 1) raise(SIGKILL);
  for (;;) r.pass_on(r.world);
}

// It answers, but does not come.
void does_not_come(Rank& r) {
  if (r.rank == 1) std::this_thread::sleep_for(1h);
  r.sum(r.world);
}

void comes_late(Rank& r) {
  for (int who = 0; who < r.world.size(); ++who) {
    if (r.rank == who) std::this_thread::sleep_for(r.timeout / 2);
    r.sum(r.world);
    r.pass_on(r.world);
  }
}

// The rank throws while all others wait for it in calls of several groups.
void throws(Rank& r) {
  const auto part = r.world.split(0, -r.rank, "part");
  r.sum(*part);
  if (r.rank == 1) fail("the disk is full");
  const Ticket first = r.world.all_reduce(r.x, Reduce::max, r.ops.record());
  r.pass_on(*part);
  r.ops.finish(first);
}

void differs(Rank& r) {
  r.ops.finish(r.world.all_reduce(r.x.rows(0, r.rank == 1 ? 7 : 9), Reduce::max, r.ops.record()));
}

bool fail_in(const std::string& way, Rank& r) {
  r.sum(r.world);  // connections are made by the first call
  if (way == "killed") signalled(r, SIGKILL);
  if (way == "stopped") signalled(r, SIGSTOP);
  if (way == "killed_in_exchange") killed_in_exchange(r);
  if (way == "does_not_come") return does_not_come(r), true;
  if (way == "comes_late") return comes_late(r), true;
  if (way == "throws") return throws(r), true;
  if (way == "differs") return differs(r), true;
  return false;
}

int run(const std::string& way, double seconds) {
  const Launch launch = detect_launch({});
  const std::chrono::duration<double> timeout(seconds);
  const nccl::ProcessOptions options{.address = launch.address,
                                     .rank = launch.rank,
                                     .size = launch.world,
                                     .timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout),
                                     .machine = launch.machine};
  bool known = true;
  const int status = nccl::run_process(
      options,
      [&](RankHandle& rank_handle) {
        const cuda::CudaParts gpu = cuda::make_cuda({});
        const std::unique_ptr<Comm> world = rank_handle.join(*gpu.ops);
        CommTensors tensors({*world, *gpu.ops, *gpu.device}, 1 << 20);
        Rank rank{.world = *world,
                  .ops = *gpu.ops,
                  .x = tensors.make(shape(1000), DType::f32, Values(1000, 1)),
                  .timeout = timeout};
        report_faults(*world, [&] { known = fail_in(way, rank); });
      },
      [](std::string_view fault) { fmt::print(stderr, "told by {}\n", fault); });
  return known ? status : 99;
}

}  // namespace
}  // namespace tera::test

int main(int argc, char** argv) { return argc < 3 ? 99 : tera::test::run(argv[1], std::atof(argv[2])); }
