// The console's text, and the time until a job of processes is over, when a rank fails.

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/paths.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

struct Job {
  int status = -1;
  std::string output;
  double seconds = 0;
  std::vector<std::string> left_behind;  // command lines

  int occurrences(const std::string& words) const {
    int times = 0;
    for (std::size_t at = output.find(words); at != std::string::npos; at = output.find(words, at + 1)) ++times;
    return times;
  }
};

// Processes whose command line has the mark, but for zombies (which have none).
std::vector<std::string> processes(const std::string& mark) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    std::string line{std::istreambuf_iterator<char>(file), {}};
    std::replace(line.begin(), line.end(), '\0', ' ');
    if (line.find(mark) != std::string::npos) found.push_back(line);
  }
  return found;
}

Job run(int ranks, const std::string& way) {
  Job job;
  const std::string mark = fmt::format("mark-{}-{}", getpid(), way);
  const auto begin = std::chrono::steady_clock::now();
  const std::string command = fmt::format("exec timeout -k 1 40 {} -n {} {} {} {} 2>&1 < /dev/null", paths::mpirun,
                                          ranks, paths::mpi_failing, way, mark);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return job;
  std::array<char, 4096> buffer{};
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    job.output.append(buffer.data(), n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) job.status = WEXITSTATUS(status);
  job.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (int i = 0; i < 20 && !(job.left_behind = processes(mark)).empty(); ++i) std::this_thread::sleep_for(100ms);
  return job;
}

// The job is over, soon and entirely, and the console has these words. The status is Open MPI's; another status means
// an unknown way (77), a timeout (124, or 137 late) or a crash of mpirun itself (139).
Job expect_failure(int ranks, const std::string& way, const std::vector<std::string>& words, int status = 1) {
  Job job = run(ranks, way);
  EXPECT_EQ(job.status, status) << way << ":\n" << job.output;
  EXPECT_LT(job.seconds, 15) << way;
  EXPECT_TRUE(job.left_behind.empty()) << way << " left " << job.left_behind.size() << " processes";
  for (const std::string& word : words)
    EXPECT_GE(job.occurrences(word), 1) << way << ": '" << word << "' is not in:\n" << job.output;
  return job;
}

TEST(MpiFailure, ARankThatThrows) {
  const Job job = expect_failure(3, "throws", {"told by rank 1: the disk is full"});
  EXPECT_EQ(job.occurrences("told by"), 1) << job.output;
}

TEST(MpiFailure, ARankThatThrowsWithBytesInFlight) {
  const Job job = expect_failure(3, "throws_with_bytes_in_flight", {"told by rank 1: the disk is full"});
  EXPECT_EQ(job.occurrences("told by"), 1) << job.output;
}

TEST(MpiFailure, ARankThatIsStopped) {
  expect_failure(3, "stops",
                 {"told by rank 0: rank 1 has not answered for 1 s: it is stopped, or its machine is (rank 1 last did "
                  "all_gather f32 x 2 of tp, its call 2)"});
}

TEST(MpiFailure, ARankThatIsStoppedWhenItHasLeft) {
  const Job job = expect_failure(3, "stops_after_its_end",
                                 {"told by rank 0: rank 1 has not answered for 1 s: it is stopped, or its machine is, "
                                  "after its work was over"});
  EXPECT_GT(job.seconds, 2.5) << "the others did not work to their end";
}

// As by Ctrl-Z and fg, or scontrol suspend and resume.
TEST(MpiFailure, AJobThatIsSuspendedGoesOn) {
  const Job job = run(3, "suspended");
  EXPECT_EQ(job.status, 0) << job.output;
  EXPECT_EQ(job.output, "");
  EXPECT_GT(job.seconds, 2.5) << "it was not suspended";
}

TEST(MpiFailure, ARankThatIsKilled) { expect_failure(3, "killed", {"rank 1", "signal 9"}, 128 + SIGKILL); }

TEST(MpiFailure, ARankThatNeverComes) {
  expect_failure(4, "never_comes",
                 {"tp: all_reduce max f32 x 10 on rank ",
                  "waited 1 s: rank 1 did not come (rank 1 last did all_gather f32 x 2 of tp, its "
                  "call 2)"});
}

TEST(MpiFailure, ARankThatIsDoneAlready) {
  expect_failure(3, "leaves_early", {"waited 1 s: rank 1 did not come (rank 1 has called nothing yet, and has ended)"});
}

TEST(MpiFailure, RanksThatWaitElsewhere) {
  const Job job = expect_failure(3, "waits_elsewhere", {"did not come (rank "});
  EXPECT_GE(job.occurrences("rank 1 is in broadcast from 1 f32 x 4 of dp, its call 2") +
                job.occurrences("rank 0 is in all_reduce sum f32 x 5 of world, its call 2"),
            1)
      << job.output;
}

TEST(MpiFailure, DifferentCalls) {
  const Job job = expect_failure(3, "other_call",
                                 {"world: the ranks make different calls: rank 0: all_reduce sum f32 x 1048576; rank "
                                  "1: barrier; rank 2: all_reduce sum f32 x 1048576"});
  EXPECT_EQ(job.occurrences("told by"), 1) << job.output;  // all ranks have this text: reported once
  expect_failure(2, "other_size", {"rank 0: all_reduce sum f32 x 10; rank 1: all_reduce sum f32 x 11"});
}

TEST(MpiFailure, RowsAndTransfersThatDoNotFit) {
  expect_failure(2, "other_rows",
                 {"told by rank 1: world: all_to_all: rank 0 sends 2 rows to rank 1, which expects 1"});
  expect_failure(2, "other_transfer",
                 {"told by rank 1: world: exchange: rank 0 sends f32[4] to rank 1, which expects f32[5]"});
}

TEST(MpiFailure, ATransferWhoseOtherSideNeverComes) {
  expect_failure(3, "lonely_transfer",
                 {"told by rank 1: world: exchange of 1048582 elements on rank 1 waited 1 s: "
                  "ranks 0, 2 did not come (rank 0 has called nothing yet"});
}

TEST(MpiFailure, AbortWithoutAnException) { expect_failure(2, "aborts", {"told by rank 1: stopped by hand"}); }

TEST(MpiFailure, FaultsOfSeveralRanks) {
  Job job = expect_failure(4, "same_mistake", {"told by rank 0: train.seed=x: not a number"}, 2);
  EXPECT_EQ(job.occurrences("told by"), 1) << job.output;
  job = expect_failure(3, "two_faults", {"told by rank 0: fault 0", "told by rank 1: fault 1"});
  EXPECT_EQ(job.occurrences("told by"), 2) << job.output;
}

}  // namespace
}  // namespace tera::test
