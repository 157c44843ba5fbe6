// One of several processes is killed, stopped or stuck: all others end soon and name it.

#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <thread>

#include "tests/support/paths.h"
#include "tests/support/start_ranks.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

class ControlFailure : public testing::Test {
 protected:
  // All ranks but those that are stopped have ended, within the time.
  RankProcesses& run(int ranks, const std::string& way, const std::vector<int>& stopped = {}) {
    start(ranks, way);
    EXPECT_TRUE(processes_->wait(15s, stopped)) << way << ":\n" << processes_->all_output();
    return *processes_;
  }
  RankProcesses& start(int ranks, const std::string& way) {
    processes_ = std::make_unique<RankProcesses>(RankProcesses::Options{.ranks = ranks,
                                                                        .command = {paths::control_failing, way},
                                                                        .environment = {},
                                                                        .folder = folder_.path().string()});
    return *processes_;
  }
  // The job has ranks that are "endless".
  static void wait_until_all_are_there(const RankProcesses& job, int ranks) {
    for (int i = 0; i < 1000; ++i, std::this_thread::sleep_for(10ms)) {
      int there = 0;
      for (int rank = 0; rank < ranks; ++rank) there += job.output(rank).find("all are there") != std::string::npos;
      if (there == ranks) return;
    }
    ADD_FAILURE() << "not all came:\n" << job.all_output();
  }
  static void expect_reported(const RankProcesses& processes, const std::string& words) {
    const std::string text = processes.all_output();
    const std::size_t first = text.find(words);
    EXPECT_NE(first, std::string::npos) << "'" << words << "' is not in:\n" << text;
    EXPECT_EQ(first, text.rfind(words)) << "told twice:\n" << text;
  }

  TempFolder folder_;
  std::unique_ptr<RankProcesses> processes_;
};

TEST_F(ControlFailure, AKilledRank) {
  const RankProcesses& job = run(4, "killed");
  expect_reported(job, "told by rank 0: rank 1 is gone: its connection was closed, as when it is killed");
  EXPECT_EQ(job.status(1), 128 + SIGKILL);
  for (int rank : {0, 2, 3}) EXPECT_EQ(job.status(rank), 1) << job.all_output();
}

TEST_F(ControlFailure, AStoppedRank) {
  RankProcesses& job = run(4, "stopped", {2});
  expect_reported(job, "told by rank 0: rank 2 has not answered for 1 s: it is stopped, or its machine is");
  for (int rank : {0, 1, 3}) EXPECT_EQ(job.status(rank), 1) << job.all_output();
  job.send_signal(2, SIGCONT);  // it finds the others gone
  EXPECT_TRUE(job.wait(10s)) << job.all_output();
  EXPECT_EQ(job.status(2), 1);
}

// The job is suspended as by Ctrl-Z and fg, or scontrol suspend and resume, for longer than the heartbeat timeout and
// every other timeout. Rank 0 goes on first. A rank that stays stopped after that is named.
TEST_F(ControlFailure, AJobThatIsSuspendedGoesOn) {
  RankProcesses& job = start(3, "endless");
  wait_until_all_are_there(job, 3);
  for (int round = 0; round < 2; ++round) {
    for (int rank : {0, 1, 2}) job.send_signal(rank, SIGSTOP);
    std::this_thread::sleep_for(2500ms);
    for (int rank : {0, 1, 2}) {
      job.send_signal(rank, SIGCONT);
      std::this_thread::sleep_for(100ms);
    }
    EXPECT_FALSE(job.wait(500ms)) << "they ended:\n" << job.all_output();
    for (int rank : {0, 1, 2}) ASSERT_EQ(job.status(rank), -1) << job.all_output();
  }
  job.send_signal(2, SIGSTOP);
  EXPECT_TRUE(job.wait(10s, {2})) << job.all_output();
  expect_reported(job, "told by rank 0: rank 2 has not answered for 2 s: it is stopped, or its machine is");
}

TEST_F(ControlFailure, AKilledRankZero) {
  const RankProcesses& job = run(3, "coordinator_killed");
  for (int rank : {1, 2}) {
    EXPECT_EQ(job.status(rank), 1);
    EXPECT_NE(job.output(rank).find("rank 0 is gone"), std::string::npos) << job.all_output();
  }
}

TEST_F(ControlFailure, AStoppedRankZero) {
  RankProcesses& job = run(3, "coordinator_stopped", {0});
  for (int rank : {1, 2}) {
    EXPECT_EQ(job.status(rank), 1);
    EXPECT_NE(job.output(rank).find("rank 0 has not answered for 1.25 s"), std::string::npos) << job.all_output();
  }
  job.send_signal(0, SIGCONT);
  EXPECT_TRUE(job.wait(10s)) << job.all_output();
  EXPECT_EQ(job.status(0), 1);
}

// No rank can throw.
TEST_F(ControlFailure, AStoppedRankZeroOfStuckRanks) {
  const RankProcesses& job = run(3, "coordinator_stopped_stuck", {0});
  for (int rank : {1, 2}) {
    EXPECT_EQ(job.status(rank), 1);
    EXPECT_NE(job.output(rank).find("rank 0 has not answered for 1.25 s"), std::string::npos) << job.all_output();
  }
}

// The timeout is the default of runs.
using ControlFailureSlow = ControlFailure;
TEST_F(ControlFailureSlow, AStoppedRankZeroEndsStuckRanksWithin15Seconds) {
  const RankProcesses& job = run(3, "coordinator_stopped_default", {0});
  for (int rank : {1, 2}) {
    EXPECT_EQ(job.status(rank), 1);
    EXPECT_NE(job.output(rank).find("rank 0 has not answered for 10 s"), std::string::npos) << job.all_output();
  }
}

TEST_F(ControlFailure, ARankThatIsStuck) {
  const RankProcesses& job = run(3, "stuck");
  const std::string text = job.all_output();
  EXPECT_NE(text.find("waited 1 s: rank 1 did not come"), std::string::npos) << text;
  EXPECT_NE(job.output(1).find("told by rank 1: its process is ended, as it does not end by itself (rank 1 last did "
                               "barrier of world, its call 1) since rank "),
            std::string::npos)
      << text;
  for (int rank : {0, 1, 2}) EXPECT_EQ(job.status(rank), 1) << text;
}

TEST_F(ControlFailure, AMistakeOfTheUser) {
  const RankProcesses& job = run(3, "mistake");
  expect_reported(job, "told by rank 0: train.seed=x: not a number");
  for (int rank : {0, 1, 2}) EXPECT_EQ(job.status(rank), 2) << job.all_output();
}

TEST_F(ControlFailure, ARankThatIsSlowToEnd) {
  RankProcesses& job = run(3, "slow_to_end", {1});
  EXPECT_EQ(job.status(1), -1) << "it is not slow";
  std::this_thread::sleep_for(500ms);  // it reports after the others have ended
  expect_reported(job, "told by rank 1: the disk is full");
  EXPECT_TRUE(job.wait(10s)) << job.all_output();
  expect_reported(job, "told by rank 1: the disk is full");
  for (int rank : {0, 2}) {
    EXPECT_NE(job.output(rank).find("heard within 1.5 s: world: barrier"), std::string::npos) << job.all_output();
    EXPECT_NE(job.output(rank).find("rank 1 failed: the disk is full"), std::string::npos) << job.all_output();
  }
  for (int rank : {0, 1, 2}) EXPECT_EQ(job.status(rank), 1) << job.all_output();
}

TEST_F(ControlFailure, LongWorkIsNoFailure) {
  const RankProcesses& job = run(3, "long_work");
  for (int rank : {0, 1, 2}) EXPECT_EQ(job.status(rank), 0) << job.all_output();
}

}  // namespace
}  // namespace tera::test
