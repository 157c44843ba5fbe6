// A rank that fails in the way its argument says, for control_failure_test. Ranks beyond those named do their part.

#include <fmt/core.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/comm/control/run_process.h"
#include "tests/parallel/stub_comm.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;
using control::Control;
using control::ControlGroup;

void barrier(Control& control, ControlGroup& group) { control.gather(group, {.kind = CallKind::barrier}, {}, {}); }

struct Rank {
  Control& control;
  ControlGroup world = control.world();
  int rank = control.rank();
  void synchronize() { barrier(control, world); }
};

void signals(Rank& r, int who, int signal) {
  r.synchronize();
  if (r.rank == who) raise(signal);
  for (;;) r.synchronize();
}

// Rank 0 is stopped while all others are in calls that nobody can end.
void coordinator_stopped_and_stuck(Rank& r) {
  r.synchronize();
  if (r.rank == 0) raise(SIGSTOP);
  std::this_thread::sleep_for(1h);
}

void stuck(Rank& r) {  // the others wait for a rank that nothing can end but its process
  r.synchronize();
  if (r.rank == 1) std::this_thread::sleep_for(1h);
  r.synchronize();
}

// Runs until another process ends it, and prints when all are there.
void endless(Rank& r) {
  r.synchronize();
  fmt::print("all are there\n");
  std::fflush(nullptr);
  for (;;) {
    r.synchronize();
    std::this_thread::sleep_for(r.rank == 1 ? 100ms : 1ms);  // the others wait in the call
  }
}

void long_work(Rank& r) {  // longer than every timeout, but nobody waits
  r.synchronize();
  std::this_thread::sleep_for(2s);
  r.synchronize();
}

// A rank that takes long to end after its fault, as one that waits for files or for a GPU: the fault is reported to the
// others and to the user at once.
void slow_to_end(Rank& r) {
  struct Slow {
    ~Slow() { std::this_thread::sleep_for(3s); }
  };
  struct ReportingComm final : StubComm {
    explicit ReportingComm(Control& c) : StubComm(c.rank(), c.size()), control(c) {}
    void abort(std::string_view reason) noexcept override { control.abort(reason); }
    Control& control;
  } world(r.control);
  const auto begin = std::chrono::steady_clock::now();
  try {
    const auto slow = r.rank == 1 ? std::make_unique<Slow>() : nullptr;
    report_faults(world, [&] {
      r.synchronize();
      require(r.rank != 1, "the disk is full");
      r.synchronize();
    });
  } catch (const CommError& error) {
    const std::chrono::duration<double> after = std::chrono::steady_clock::now() - begin;
    fmt::print("{} heard {} 1.5 s: {}\n", r.rank, after < 1500ms ? "within" : "after", error.what());
    std::fflush(nullptr);
    throw;
  }
}

bool fail_in(const std::string& way, Rank& r) {
  if (way == "killed") signals(r, 1, SIGKILL);
  if (way == "coordinator_killed") signals(r, 0, SIGKILL);
  if (way == "stopped") signals(r, 2, SIGSTOP);
  if (way == "coordinator_stopped") signals(r, 0, SIGSTOP);
  if (way == "endless") endless(r);
  if (way == "mistake") throw UserError("train.seed=x: not a number");
  if (way == "slow_to_end") slow_to_end(r);
  if (way == "coordinator_stopped_stuck" || way == "coordinator_stopped_default") coordinator_stopped_and_stuck(r);
  if (way == "stuck") return stuck(r), true;
  if (way == "long_work") return long_work(r), true;
  return false;
}

int number(const char* name) { return std::atoi(std::getenv(name)); }

int run(const std::string& way) {
  const control::RendezvousOptions defaults;  // how long everything may take
  const control::RendezvousOptions options{
      .address = {.host = std::getenv("MASTER_ADDR"), .port = number("MASTER_PORT")},
      .rank = number("RANK"),
      .size = number("WORLD_SIZE"),
      .timeout = way.ends_with("_default") ? defaults.timeout
                 : way == "endless"        ? 2s  // it has to live through pauses
                                           : 1s};
  bool known = true;
  Control* control = nullptr;
  const auto join = [&](Control& met, Ops&) -> std::unique_ptr<Comm> {
    control = &met;
    return nullptr;
  };
  const int status = control::run_process(
      options,
      [&](RankHandle& rank_handle) {
        cpu::CpuOps ops(1, cpu::best_isa());  // nothing is computed here
        rank_handle.join(ops);
        Rank rank{.control = *control};
        known = fail_in(way, rank);
      },
      [](std::string_view fault) { fmt::print(stderr, "told by {}\n", fault); }, join);
  return known ? status : 99;
}

}  // namespace
}  // namespace tera::test

int main(int argc, char** argv) { return argc < 2 ? 99 : tera::test::run(argv[1]); }
