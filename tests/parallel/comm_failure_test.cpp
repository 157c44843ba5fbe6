// The errors that a rank gets when another does not make its calls.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/comm/world.h"
#include "tera/ops/combine.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

constexpr ThreadCommOptions long_timeout{.timeout = 60s}, short_timeout{.timeout = 1s};

// A rank with a tensor, as the bodies below need it.
struct Rank {
  explicit Rank(RankHandle& rank_handle)
      : ops(1, cpu::best_isa()), world(rank_handle.join(ops)), rank(rank_handle.rank()) {}
  Tensor floats(std::int64_t n) { return make_tensor(memory, shape(n), DType::f32); }
  cpu::CpuOps ops;
  std::unique_ptr<Comm> world;
  int rank;
  double memory[64] = {};
};

// Runs the bodies, collects what each rank's call throws, and rethrows it so that run_threads sees it too.
struct FailedRun {
  std::vector<std::string> messages;  // by rank; "" where nothing was thrown
  std::string thrown;                 // by run_threads
  double seconds = 0;
};

template <class Body>
FailedRun run_failing(int ranks, const ThreadCommOptions& options, const Body& body) {
  FailedRun run;
  run.messages.resize(static_cast<std::size_t>(ranks));
  const auto begin = std::chrono::steady_clock::now();
  run.thrown = message_of<Error>([&] {
    run_threads(ranks, options, [&](RankHandle& rank_handle) {
      Rank rank(rank_handle);
      try {
        body(rank);
      } catch (const std::exception& error) {
        run.messages[static_cast<std::size_t>(rank_handle.rank())] = error.what();
        throw;
      }
    });
  });
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return run;
}

void expect_words(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_TRUE(contains(message, word)) << "'" << word << "' is not in: " << message;
}

TEST(CommFailure, ARankThatThrowsWakesTheOthers) {
  const FailedRun run = run_failing(4, long_timeout, [](Rank& r) {
    r.world->barrier();
    if (r.rank == 2) throw Error("the disk is full");
    const auto half = r.world->split(r.rank % 2, 0, "half");
    half->all_reduce(r.floats(3), Reduce::sum);
  });
  EXPECT_EQ(run.thrown, "rank 2: the disk is full");
  EXPECT_LT(run.seconds, 30);
  for (std::size_t rank : {0, 1, 3}) expect_words(run.messages[rank], {"world: ", "rank 2 failed: the disk is full"});
}

TEST(CommFailure, ARankThatNeverComesIsNamed) {
  const FailedRun run = run_failing(4, short_timeout, [](Rank& r) {
    const auto tp = r.world->split(0, 0, "tp");
    tp->all_gather(r.floats(2), make_tensor(r.memory + 8, shape(8), DType::f32));
    if (r.rank == 3) {
      std::this_thread::sleep_for(1500ms);
      return;
    }
    tp->all_reduce(r.floats(10), Reduce::max);
  });
  EXPECT_GT(run.seconds, 1);
  EXPECT_LT(run.seconds, 15);
  for (std::size_t rank : {0, 1, 2})
    expect_words(run.messages[rank], {"tp: all_reduce max f32 x 10 on rank", "rank 3 did not come",
                                      "rank 3 last did all_gather f32 x 2 of tp, its call 2"});
  expect_words(run.thrown, {"waited 1 s", "rank 3 did not come"});
  EXPECT_EQ(run.messages[3], "");
}

TEST(CommFailure, RanksThatWaitElsewhereAreNamedWithWhatTheyDo) {
  const FailedRun run = run_failing(3, short_timeout, [](Rank& r) {
    const auto dp = r.world->split(0, 0, "dp");
    if (r.rank == 0)
      r.world->all_reduce(r.floats(5), Reduce::sum);
    else
      dp->broadcast(r.floats(4), 1);
  });
  // The rank that fails first reports its own view; each view names a rank that is in another call.
  expect_words(run.messages[0], {"world: all_reduce sum f32 x 5", "ranks 1, 2 did not come",
                                 "rank 1 is in broadcast from 1 f32 x 4 of dp, its call 2"});
  expect_words(run.messages[1], {"dp: broadcast from 1 f32 x 4", "rank 0 did not come",
                                 "rank 0 is in all_reduce sum f32 x 5 of world, its call 2"});
}

TEST(CommFailure, DifferentCallsAreNamedOnEveryRank) {
  const auto expect_mismatch = [](const auto& body, const std::vector<std::string>& words) {
    const FailedRun run = run_failing(3, long_timeout, body);
    for (const std::string& message : run.messages) {
      expect_words(message, words);
      expect_words(message, {"world: the ranks make different calls"});
    }
    EXPECT_LT(run.seconds, 30);
  };
  expect_mismatch([](Rank& r) { r.world->all_reduce(r.floats(r.rank == 1 ? 11 : 10), Reduce::sum); },
                  {"rank 0: all_reduce sum f32 x 10", "rank 1: all_reduce sum f32 x 11"});
  expect_mismatch(
      [](Rank& r) {
        const DType dtype = r.rank == 2 ? DType::f64 : DType::f32;
        r.world->broadcast(make_tensor(r.memory, shape(4), dtype), 0);
      },
      {"rank 0: broadcast from 0 f32 x 4", "rank 2: broadcast from 0 f64 x 4"});
  expect_mismatch([](Rank& r) { r.world->all_reduce(r.floats(4), r.rank == 0 ? Reduce::max : Reduce::sum); },
                  {"rank 0: all_reduce max f32 x 4", "rank 2: all_reduce sum f32 x 4"});
  expect_mismatch([](Rank& r) { r.world->broadcast(r.floats(4), r.rank == 0 ? 1 : 2); },
                  {"rank 0: broadcast from 1", "rank 1: broadcast from 2"});
  expect_mismatch(
      [](Rank& r) {
        if (r.rank == 0)
          r.world->barrier();
        else
          r.world->all_gather(r.floats(3), make_tensor(r.memory + 8, shape(9), DType::f32));
      },
      {"rank 0: barrier", "rank 1: all_gather f32 x 3"});
}

TEST(CommFailure, RowsThatDoNotMatch) {
  const FailedRun run = run_failing(2, long_timeout, [](Rank& r) {
    const std::int64_t in[] = {1, 2}, out[] = {1, 1};
    r.world->all_to_all(r.floats(4), make_tensor(r.memory + 8, shape(4), DType::f32), in, out);
  });
  // Rank 0 sends 2 rows to rank 1, which expects 1; rank 0 gets 1 from itself and 1 from rank 1, as it expects.
  expect_words(run.thrown, {"rank 1: world: all_to_all: rank 0 sends 2 rows to rank 1, which expects 1"});
}

TEST(CommFailure, AnExchangeThatDoesNotFit) {
  const FailedRun run = run_failing(2, long_timeout, [](Rank& r) {
    const Transfer transfer{r.floats(r.rank == 0 ? 4 : 5), 1 - r.rank, r.rank == 0};
    r.ops.finish(r.world->exchange({&transfer, 1}));
  });
  expect_words(run.thrown, {"world: exchange: rank 0 sends f32[4] to rank 1, which expects f32[5]"});
}

TEST(CommFailure, AnExchangeWhoseOtherSideNeverComes) {
  const FailedRun run = run_failing(3, short_timeout, [](Rank& r) {
    if (r.rank != 1) return;
    const Transfer transfers[] = {{r.floats(4), 0, true}, {make_tensor(r.memory + 8, shape(6), DType::f32), 2, false}};
    r.ops.finish(r.world->exchange(transfers));
  });
  expect_words(run.thrown, {"rank 1: world: exchange of 10 elements on rank 1 waited 1 s", "ranks 0, 2 did not come",
                            "rank 2 has called nothing yet"});
}

TEST(CommFailure, TooManyTransfersInFlight) {
  const FailedRun run = run_failing(2, long_timeout, [](Rank& r) {
    const Transfer transfer{r.floats(1), 1, true};
    for (int i = 0; i < 65 && r.rank == 0; ++i) r.world->exchange({&transfer, 1});
    if (r.rank == 1) r.world->barrier();
  });
  expect_words(run.thrown, {"rank 0: world: rank 0 has 64 transfers in flight"});
}

TEST(CommFailure, AbortWithoutAnException) {
  const FailedRun run = run_failing(2, long_timeout, [](Rank& r) {
    if (r.rank == 0)
      r.world->abort("stopped by hand");
    else
      r.world->barrier();
  });
  EXPECT_EQ(run.thrown, "rank 0: stopped by hand");
  expect_words(run.messages[1], {"world: barrier on rank 1 ended because rank 0 failed: stopped by hand"});
}

// The fault is reported to the others before the rank frees what it holds.
TEST(CommFailure, AFaultIsReportedBeforeTheRankUnwinds) {
  std::atomic<bool> heard{false}, in_time{false};
  struct Waits {
    Waits(std::atomic<bool>& h, std::atomic<bool>& t) : heard(h), in_time(t) {}
    ~Waits() {
      for (int i = 0; i < 5000 && !heard; ++i) std::this_thread::sleep_for(1ms);
      in_time = heard.load();
    }
    std::atomic<bool>&heard, &in_time;
  };
  const FailedRun run = run_failing(2, long_timeout, [&](Rank& r) {
    std::optional<Waits> waits;
    if (r.rank == 1) waits.emplace(heard, in_time);
    try {
      report_faults(*r.world, [&] {
        r.world->barrier();
        if (r.rank == 1) throw Error("the disk is full");
        r.world->barrier();
      });
    } catch (const CommAborted&) {
      heard = true;
      throw;
    }
  });
  EXPECT_TRUE(in_time);
  EXPECT_EQ(run.thrown, "rank 1: the disk is full");
  expect_words(run.messages[0], {"rank 1 failed: the disk is full"});
}

TEST(RunThreads, KeepsTheKindOfAFaultAndReportsIndependentOnes) {
  const std::string mistake = message_of<UserError>(
      [] { run_threads(3, long_timeout, [](RankHandle&) { throw UserError("train.seed=x: not a number"); }); });
  expect_words(mistake, {"rank ", ": train.seed=x: not a number"});
  EXPECT_EQ(std::count(mistake.begin(), mistake.end(), '\n'), 0);  // all ranks have this fault: reported once
  const std::string two = message_of<Error>([] {
    run_threads(3, long_timeout, [](RankHandle& rank_handle) {
      if (rank_handle.rank() < 2) throw Error(fmt::format("fault {}", rank_handle.rank()));
    });
  });
  expect_words(two, {"rank 0: fault 0", "rank 1: fault 1"});
  expect_words(message_of<Error>([] { run_threads(2, long_timeout, [](RankHandle&) { throw 5; }); }), {"unknown type"});
}

TEST(RunThreads, ReturnsWhenAllAreDone) {
  std::mutex mutex;
  std::vector<int> seen;
  run_threads(5, long_timeout, [&](RankHandle& rank_handle) {
    const std::lock_guard lock(mutex);
    seen.push_back(rank_handle.rank() * 10 + rank_handle.size());
  });
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, (std::vector<int>{5, 15, 25, 35, 45}));
  EXPECT_THROW(run_threads(0, long_timeout, [](RankHandle&) {}), Error);
}

// The fault of a third rank wakes a rank that another one reads from. Its memory is freed only after the reader is
// done.
TEST(CommFailure, MemoryStaysWhileOthersReadIt) {
  for (int round = 0; round < 3; ++round) {
    const std::string message = message_of<Error>([] {
      run_threads(3, long_timeout, [](RankHandle& rank_handle) {
        constexpr std::int64_t n = 20'000'000;  // so large that it is given back to the system at once
        cpu::CpuOps ops(1, cpu::best_isa());
        std::vector<float> memory(rank_handle.rank() < 2 ? static_cast<std::size_t>(n) : 0, 1.0f);
        const auto world = rank_handle.join(ops);
        const auto pair = world->split(rank_handle.rank() < 2 ? 0 : 1, rank_handle.rank(), "pair");
        world->barrier();
        if (rank_handle.rank() == 2) {
          std::this_thread::sleep_for(3ms);
          throw std::runtime_error("the fault of a third");
        }
        for (int i = 0; i < 100; ++i) pair->broadcast(make_tensor(memory.data(), shape(n), DType::f32), 0);
      });
    });
    EXPECT_TRUE(contains(message, "rank 2: the fault of a third")) << message;
  }
}

// Reports of all ranks about one of them name that one alone.
TEST(CommFailure, AMessageThatNamesItsRankIsReportedAsItIs) {
  EXPECT_EQ(report_of(3, "no room"), "rank 3: no room");
  EXPECT_EQ(report_of(3, "rank 12: no room"), "rank 12: no room");
  for (const char* other : {"", "rank ", "rank 2", "rank 2 is gone: it was killed", "rank : none", "ranks 2: none"})
    EXPECT_EQ(report_of(3, other), std::string("rank 3: ") + other);
}

}  // namespace
}  // namespace tera::test
