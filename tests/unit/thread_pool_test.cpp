#include "tera/backend/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace tera::cpu {
namespace {

TEST(ThreadPool, RunsEveryIndexOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (std::int64_t count : {0, 1, 2, 7, 100, 1000}) {
      std::vector<int> hits(static_cast<std::size_t>(count));
      bool workers_in_range = true;
      pool.parallel_for(count, [&](std::int64_t i, int worker) {
        ++hits[static_cast<std::size_t>(i)];
        if (worker < 0 || worker >= threads) workers_in_range = false;
      });
      EXPECT_EQ(hits, std::vector<int>(static_cast<std::size_t>(count), 1)) << threads << " threads";
      EXPECT_TRUE(workers_in_range);
    }
  }
}

TEST(ThreadPool, ManyRoundsSeeEachOthersWrites) {
  ThreadPool pool(3);
  constexpr std::size_t size = 16;
  std::vector<std::int64_t> now(size), next(size);
  constexpr int rounds = 2000;
  for (int round = 0; round < rounds; ++round) {
    // Each round reads what all tasks of the round before wrote.
    pool.parallel_for(size, [&](std::int64_t i, int) {
      const auto at = static_cast<std::size_t>(i);
      next[at] = now[(at + 1) % size] + 1;
    });
    std::swap(now, next);
  }
  EXPECT_EQ(now, std::vector<std::int64_t>(size, rounds));
}

TEST(ThreadPool, WakesAfterSleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than helpers spin
    std::atomic<int> done{0};
    pool.parallel_for(10, [&](std::int64_t, int) { ++done; });
    EXPECT_EQ(done, 10);
  }
}

TEST(ThreadPool, WorkersNameThreads) {
  ThreadPool pool(4);
  // No two tasks run under one worker's name at the same time: scratch per worker is safe.
  std::atomic<int> busy[4] = {};
  std::atomic<bool> shared{false};
  pool.parallel_for(2000, [&](std::int64_t, int worker) {
    if (busy[worker]++ != 0) shared = true;
    --busy[worker];
  });
  EXPECT_FALSE(shared);
}

TEST(ThreadPool, StartsAndStopsIdle) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

}  // namespace
}  // namespace tera::cpu
