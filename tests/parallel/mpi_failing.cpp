// A program that fails in the way its argument says, for mpi_failure_test. Ranks beyond those named do their part.

#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/comm/mpi/make_mpi.h"
#include "tera/ops/combine.h"
#include "tera/train/launch.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

struct Rank {
  explicit Rank(RankHandle& rank_handle)
      : large(1 << 20), ops(1, cpu::best_isa()), world(rank_handle.join(ops)), rank(rank_handle.rank()) {}
  Tensor floats(std::int64_t n) { return make_tensor(memory, shape(n), DType::f32); }
  Tensor many() { return make_tensor(large.data(), shape(large.size()), DType::f32); }
  double memory[64] = {};  // outlives the Comm
  std::vector<float> large;
  cpu::CpuOps ops;
  std::unique_ptr<Comm> world;
  int rank;
};

void throws(Rank& r) {
  r.world->barrier();
  if (r.rank == 1) throw Error("the disk is full");
  r.ops.finish(r.world->all_reduce(r.floats(3), Reduce::sum));
}

void throws_with_bytes_in_flight(Rank& r) {
  const Ticket done = r.world->all_reduce(r.many(), Reduce::sum);
  if (r.rank == 1) throw Error("the disk is full");
  r.ops.finish(done);
  r.ops.finish(r.world->all_reduce(r.many(), Reduce::sum));
}

void stops(Rank& r) {
  const auto tp = r.world->split(0, 0, "tp");
  r.ops.finish(tp->all_gather(r.floats(2), make_tensor(r.memory + 8, shape(2 * tp->size()), DType::f32)));
  std::this_thread::sleep_for(r.rank == 1 ? 300ms : 500ms);  // a heartbeat says what it did; the others call later
  if (r.rank == 1) raise(SIGSTOP);
  r.ops.finish(tp->all_reduce(r.floats(10), Reduce::max));
}

// All processes are stopped for longer than every timeout, and go on one after the other.
void suspended(Rank& r) {
  const int ranks = r.world->size();
  std::vector<std::int32_t> pids(static_cast<std::size_t>(ranks), getpid());
  const Tensor all = make_tensor(pids.data(), shape(ranks), DType::i32);
  r.ops.finish(r.world->all_gather(all.rows(r.rank, r.rank + 1), all));
  const pid_t helper = r.rank == 0 ? fork() : -1;
  if (helper == 0) {
    std::this_thread::sleep_for(300ms);  // the others wait for rank 0 by then
    for (const std::int32_t pid : pids) kill(pid, SIGSTOP);
    std::this_thread::sleep_for(2500ms);
    for (const std::int32_t pid : pids) {
      kill(pid, SIGCONT);
      std::this_thread::sleep_for(100ms);
    }
    _exit(0);
  }
  if (r.rank == 0) std::this_thread::sleep_for(600ms);
  r.ops.finish(r.world->all_reduce(r.many(), Reduce::max));
  if (helper > 0) waitpid(helper, nullptr, 0);
  r.world->barrier();
}

void killed(Rank& r) {
  r.world->barrier();
  if (r.rank == 1) raise(SIGKILL);
  r.world->barrier();
}

// A rank that has left is stopped while the others work, who go on to their end.
void stops_after_its_end(Rank& r) {
  r.world->barrier();
  if (r.rank != 1) return std::this_thread::sleep_for(2500ms);
  std::thread([] {
    std::this_thread::sleep_for(500ms);
    kill(getpid(), SIGSTOP);
  }).detach();
}

void never_comes(Rank& r) {
  const auto tp = r.world->split(0, 0, "tp");
  r.ops.finish(tp->all_gather(r.floats(2), make_tensor(r.memory + 8, shape(2 * tp->size()), DType::f32)));
  if (r.rank == 1) std::this_thread::sleep_for(60s);
  r.ops.finish(tp->all_reduce(r.floats(10), Reduce::max));
}

void leaves_early(Rank& r) {
  if (r.rank != 1) r.ops.finish(r.world->all_reduce(r.floats(5), Reduce::sum));
}

void waits_elsewhere(Rank& r) {
  const auto dp = r.world->split(0, 0, "dp");
  if (r.rank == 0)
    r.ops.finish(r.world->all_reduce(r.floats(5), Reduce::sum));
  else
    r.ops.finish(dp->broadcast(r.floats(4), 1));
}

void other_call(Rank& r) {
  if (r.rank == 1)
    r.world->barrier();
  else
    r.ops.finish(r.world->all_reduce(r.many(), Reduce::sum));
}

void other_size(Rank& r) { r.ops.finish(r.world->all_reduce(r.floats(r.rank == 1 ? 11 : 10), Reduce::sum)); }

void other_rows(Rank& r) {
  const std::int64_t in[] = {1, r.rank == 0 ? 2 : 1}, out[] = {1, 1};
  r.ops.finish(r.world->all_to_all(r.floats(4), make_tensor(r.memory + 8, shape(4), DType::f32), in, out));
}

void other_transfer(Rank& r) {
  const Transfer transfer{r.floats(r.rank == 0 ? 4 : 5), 1 - r.rank, r.rank == 0};
  r.ops.finish(r.world->exchange({&transfer, 1}));
  r.world->barrier();
}

void lonely_transfer(Rank& r) {
  const Transfer transfers[] = {{r.many(), 0, true}, {r.floats(6), 2, false}};
  if (r.rank == 1) r.ops.finish(r.world->exchange(transfers));
}

void aborts(Rank& r) {
  if (r.rank == 1) r.world->abort("stopped by hand");
  if (r.rank != 1) r.world->barrier();
}

void same_mistake(Rank&) { throw UserError("train.seed=x: not a number"); }

void two_faults(Rank& r) {
  if (r.rank < 2) throw Error(fmt::format("fault {}", r.rank));
}

struct Way {
  std::string_view name;
  void (*body)(Rank&);
};
constexpr Way ways[] = {
    {"throws", throws},
    {"throws_with_bytes_in_flight", throws_with_bytes_in_flight},
    {"stops", stops},
    {"stops_after_its_end", stops_after_its_end},
    {"suspended", suspended},
    {"killed", killed},
    {"never_comes", never_comes},
    {"leaves_early", leaves_early},
    {"waits_elsewhere", waits_elsewhere},
    {"other_call", other_call},
    {"other_size", other_size},
    {"other_rows", other_rows},
    {"other_transfer", other_transfer},
    {"lonely_transfer", lonely_transfer},
    {"aborts", aborts},
    {"same_mistake", same_mistake},
    {"two_faults", two_faults},
};

int fail_in(std::string_view name) {
  for (const Way& way : ways) {
    if (way.name != name) continue;
    cpu::CpuOps combiner(1, cpu::best_isa());
    return mpi::run_process(
        {.timeout = name == "suspended" ? 2s : 1s,  // a pause counts for a second
         .launcher_kills = detect_launch({}).launcher_kills},
        combiner,
        [&](RankHandle& rank_handle) {
          Rank rank(rank_handle);
          way.body(rank);
        },
        [](std::string_view fault) { fmt::print(stderr, "told by {}\n", fault); },
        [](control::Control&, Ops&) -> std::unique_ptr<Comm> { fail("there is no GPU here"); });
  }
  return 77;
}

}  // namespace
}  // namespace tera::test

int main(int argc, char** argv) { return argc < 2 ? 77 : tera::test::fail_in(argv[1]); }
