// One of several ranks with GPUs is killed, stopped, late or makes other calls: the others end soon and name it.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>

#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/comm/nccl/nccl_info.h"
#include "tests/support/paths.h"
#include "tests/support/start_ranks.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

class NcclFailure : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::usable() && !nccl::query_nccl().version.empty()) return;
    if (gpus_are_emulated) FAIL() << "the emulated GPU, or the stand-in for NCCL, is not found";
    GTEST_SKIP() << "no GPU, or no NCCL";
  }
  // NCCL itself takes seconds to start and to end.
  static double timeout() { return gpus_are_emulated ? 1 : 8; }

  // All ranks but those that are stopped have ended, within the time.
  RankProcesses& run(int ranks, const std::string& way, const std::vector<int>& stopped = {}) {
    job_ = std::make_unique<RankProcesses>(
        RankProcesses::Options{.ranks = ranks,
                               .command = {paths::nccl_failing, way, fmt::format("{}", timeout())},
                               .environment = {},
                               .folder = folder_.path().string()});
    EXPECT_TRUE(job_->wait(gpus_are_emulated ? 10s : 60s, stopped)) << way << ":\n" << job_->all_output();
    return *job_;
  }
  void expect_said(int rank, const std::string& words) const {
    EXPECT_NE(job_->output(rank).find(words), std::string::npos) << "'" << words << "' is not in:\n"
                                                                 << job_->all_output();
  }
  void expect_statuses(const std::vector<int>& statuses) const {
    for (std::size_t rank = 0; rank < statuses.size(); ++rank)
      EXPECT_EQ(job_->status(static_cast<int>(rank)), statuses[rank]) << job_->all_output();
  }

  TempFolder folder_;
  std::unique_ptr<RankProcesses> job_;
};

TEST_F(NcclFailure, AKilledRank) {
  run(3, "killed");
  expect_said(0, "told by rank 0: rank 1 is gone: its connection was closed, as when it is killed");
  expect_statuses({1, 128 + SIGKILL, 1});
  run(2, "killed_in_exchange");
  expect_said(0, "told by rank 0: rank 1 is gone");
  expect_statuses({1, 128 + SIGKILL});
}

TEST_F(NcclFailure, AStoppedRank) {
  RankProcesses& job = run(4, "stopped", {1});
  expect_said(0, fmt::format("told by rank 0: rank 1 has not answered for {:g} s", timeout()));
  expect_statuses({1, -1, 1, 1});
  job.send_signal(1, SIGCONT);  // it finds the others gone
  EXPECT_TRUE(job.wait(10s)) << job.all_output();
  EXPECT_EQ(job.status(1), 1) << job.all_output();
}

TEST_F(NcclFailure, ARankThatDoesNotCome) {
  const RankProcesses& job = run(3, "does_not_come");
  const std::string text = job.all_output();
  EXPECT_NE(text.find(fmt::format("waited {:g} s: rank 1 did not come", timeout())), std::string::npos) << text;
  expect_said(1, "told by rank 1: its process is ended, as it does not end by itself");
  expect_statuses({1, 1, 1});
}

TEST_F(NcclFailure, LateRanksAreWaitedFor) {
  run(3, "comes_late");
  expect_statuses({0, 0, 0});
}

TEST_F(NcclFailure, ARankThatThrowsWhileGroupsWait) {
  const RankProcesses& job = run(4, "throws");
  const std::string text = job.all_output(), words = "the disk is full";
  EXPECT_NE(text.find("told by rank 1: " + words), std::string::npos) << text;
  EXPECT_EQ(text.find(words), text.rfind(words)) << "told twice:\n" << text;
  expect_statuses({1, 1, 1, 1});
}

// The emulated NCCL notices it; what NCCL itself does is undefined.
TEST_F(NcclFailure, CallsThatDiffer) {
  if (!gpus_are_emulated) GTEST_SKIP() << "only with the stand-in for NCCL";
  const RankProcesses& job = run(2, "differs");
  const std::string text = job.all_output();
  for (const char* call :
       {"rank 0 has all_reduce of 9 float32, maximum", "rank 1 has all_reduce of 7 float32, maximum"})
    EXPECT_NE(text.find(call), std::string::npos) << text;
  expect_statuses({1, 1});
}

}  // namespace
}  // namespace tera::test
