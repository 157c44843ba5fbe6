#include "tests/cuda_on_cpu/nccl_ranks.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <system_error>
#include <thread>

namespace tera::test {
namespace {

using namespace std::chrono_literals;

constexpr auto longest = 60s;

int status_of(int pid, std::chrono::steady_clock::time_point deadline) {
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) kill(pid, SIGKILL);
    std::this_thread::sleep_for(1ms);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Failures of the running test, including those of the process that this one was forked from.
int failed_parts() { return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count(); }

}  // namespace

void NcclRank::finish() const { EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess); }

std::vector<int> run_nccl_processes(int ranks, const std::function<void(int, Board&)>& body) {
  void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Board& board = *new (memory) Board{};
  std::fflush(nullptr);
  std::vector<int> pids, statuses;
  for (int rank = 0; rank < ranks; ++rank) {
    const int pid = fork();
    if (pid == 0) {
      const int parts_before = failed_parts();
      body(rank, board);
      std::fflush(nullptr);
      _exit(failed_parts() > parts_before ? 1 : 0);
    }
    pids.push_back(pid);
  }
  const auto deadline = std::chrono::steady_clock::now() + longest;
  for (const int pid : pids) statuses.push_back(status_of(pid, deadline));
  munmap(memory, sizeof(Board));
  return statuses;
}

std::vector<int> run_nccl_ranks(int ranks, const std::function<void(const NcclRank&)>& body) {
  return run_nccl_processes(ranks, [&](int rank, Board& board) {
    ncclComm_t world = nullptr;
    cudaStream_t stream = nullptr;
    ASSERT_EQ(ncclCommInitRank(&world, ranks, take_id(rank, board), rank), ncclSuccess) << ncclGetLastError(nullptr);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    body({rank, ranks, world, stream, board});
  });
}

void expect_all(int ranks, const std::function<void(const NcclRank&)>& body) {
  EXPECT_EQ(run_nccl_ranks(ranks, body), std::vector<int>(static_cast<std::size_t>(ranks), 0));
}

ncclUniqueId take_id(int rank, Board& board) {
  if (rank == 0) {
    EXPECT_EQ(ncclGetUniqueId(&board.id), ncclSuccess);
    board.has_id = true;
  }
  while (!board.has_id) std::this_thread::sleep_for(100us);
  return board.id;
}

void wait_for_mark(Board& board, int mark, int value) {
  while (board.marks[mark] < value) std::this_thread::sleep_for(1ms);
}

bool shares_memory() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("nccl_on_cpu") != std::string::npos) return true;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;  // the folder's own is gone by now
    if (std::filesystem::read_symlink(file, ignored).string().find("nccl_on_cpu") != std::string::npos) return true;
  }
  return false;
}

}  // namespace tera::test
