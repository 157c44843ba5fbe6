// What the emulated NCCL does when ranks abort, die or make invalid calls.

#include <gtest/gtest.h>
#include <nccl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda_on_cpu/nccl_ranks.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

TEST(CudaOnCpuNccl, AbortEndsWhatWaits) {
  expect_all(2, [](const NcclRank& self) {
    if (self.rank == 1) return wait_for_mark(self.board, 0);
    std::vector<float> data(above_a_ring, 1);
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum, self.world, self.stream));
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum, self.world, self.stream));
    std::thread other([&] {
      std::this_thread::sleep_for(50ms);
      EXPECT_EQ(cudaStreamQuery(self.stream), cudaErrorNotReady);
      EXPECT_NCCL(ncclCommAbort(self.world));
    });
    self.finish();
    other.join();
    EXPECT_FALSE(shares_memory());
    self.board.marks[0] = 1;
  });
}

// The others wait, as on GPUs; the missing rank is found by other means.
TEST(CudaOnCpuNccl, AKilledRankLeavesNothingBehind) {
  const std::vector<int> statuses = run_nccl_ranks(3, [](const NcclRank& self) {
    std::vector<float> data(above_a_ring, 1);
    const auto sum = [&] {
      EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum, self.world, self.stream));
    };
    sum();
    self.finish();
    if (self.rank == 2) {
      while (self.board.marks[0] < 2) std::this_thread::sleep_for(1ms);
      kill(getpid(), SIGKILL);
    }
    sum();
    ++self.board.marks[0];
    std::this_thread::sleep_for(200ms);
    EXPECT_EQ(cudaStreamQuery(self.stream), cudaErrorNotReady);
    ncclResult_t error = ncclInternalError;
    EXPECT_NCCL(ncclCommGetAsyncError(self.world, &error));
    EXPECT_EQ(error, ncclSuccess);
    EXPECT_NCCL(ncclCommAbort(self.world));
    self.finish();
    EXPECT_FALSE(shares_memory());
  });
  EXPECT_EQ(statuses, std::vector<int>({0, 0, 128 + SIGKILL}));
}

// The communicator's first result that is not success, and its message.
std::string async_fault(const NcclRank& self) {
  ncclResult_t error = ncclSuccess;
  for (int i = 0; i < 2'000 && error == ncclSuccess; ++i) {
    EXPECT_NCCL(ncclCommGetAsyncError(self.world, &error));
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(error, ncclInvalidArgument);
  const std::string text = ncclGetLastError(self.world);
  ++self.board.marks[0];
  wait_for_mark(self.board, 0, self.ranks);
  EXPECT_EQ(cudaStreamQuery(self.stream), cudaErrorNotReady);
  EXPECT_NCCL(ncclCommAbort(self.world));
  self.finish();
  return text;
}

TEST(CudaOnCpuNccl, CallsThatDifferAreNoticed) {
  const auto expect_text = [](const std::string& text, const char* mine, const char* other) {
    EXPECT_NE(text.find(mine), std::string::npos) << text;
    EXPECT_NE(text.find(other), std::string::npos) << text;
  };
  std::vector<float> data(200);
  expect_all(2, [&](const NcclRank& self) {
    const std::size_t count = self.rank == 0 ? 100 : 99;
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), count, ncclFloat32, ncclSum, self.world, self.stream));
    expect_text(async_fault(self), "all_reduce of 100 float32, sum", "all_reduce of 99 float32, sum");
  });
  expect_all(3, [&](const NcclRank& self) {
    EXPECT_NCCL(
        ncclBroadcast(data.data(), data.data(), 9, ncclFloat32, self.rank == 1 ? 1 : 0, self.world, self.stream));
    const std::string text = async_fault(self);
    expect_text(text, "rank 1 has broadcast of 9 float32, root 1", "broadcast of 9 float32, root 0");
  });
  expect_all(2, [&](const NcclRank& self) {
    if (self.rank == 0)
      EXPECT_NCCL(ncclAllGather(data.data(), data.data(), 5, ncclInt32, self.world, self.stream));
    else
      EXPECT_NCCL(ncclReduceScatter(data.data(), data.data(), 5, ncclFloat32, ncclMax, self.world, self.stream));
    expect_text(async_fault(self), "all_gather of 5 int32", "reduce_scatter of 5 float32, maximum");
  });
  expect_all(2, [&](const NcclRank& self) {
    if (self.rank == 0) {
      EXPECT_NCCL(ncclSend(data.data(), 200, ncclFloat32, 1, self.world, self.stream));
      return wait_for_mark(self.board, 0, 2);
    }
    EXPECT_NCCL(ncclRecv(data.data(), 100, ncclFloat32, 0, self.world, self.stream));
    ++self.board.marks[0];
    expect_text(async_fault(self), "rank 1 has send of 100 float32", "rank 0 has send of 200 float32");
  });
}

TEST(CudaOnCpuNccl, WrongArgumentsAreRefused) {
  expect_all(2, [](const NcclRank& self) {
    std::vector<float> data(4, 3);
    const auto refused = [](ncclResult_t result, const char* text) {
      EXPECT_EQ(result, ncclInvalidArgument);
      EXPECT_NE(std::string(ncclGetLastError(nullptr)).find(text), std::string::npos) << ncclGetLastError(nullptr);
    };
    const auto send = [&](int peer) { return ncclSend(data.data(), 4, ncclFloat32, peer, self.world, self.stream); };
    refused(send(2), "there is no rank 2");
    refused(send(-1), "there is no rank -1");
    refused(ncclRecv(nullptr, 4, ncclFloat32, 0, self.world, self.stream), "a pointer is null");
    const auto eight_bits = static_cast<ncclDataType_t>(10);  // ncclFloat8e4m3, which older headers do not name
    refused(ncclAllGather(data.data(), data.data(), 1, eight_bits, self.world, self.stream), "type");
    refused(ncclAllReduce(data.data(), data.data(), 1, ncclFloat32, ncclNumOps, self.world, self.stream), "reduction");
    refused(ncclBroadcast(data.data(), data.data(), 1, ncclFloat32, 7, self.world, self.stream), "rank");
    ncclComm_t part = nullptr;
    refused(ncclCommSplit(self.world, -3, 0, &part, nullptr), "color");
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);

    // No call of a group runs when one of them is refused.
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(send(1 - self.rank));
    EXPECT_EQ(send(9), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT_EQ(cudaStreamQuery(self.stream), cudaSuccess);
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 4, ncclFloat32, ncclSum, self.world, self.stream));
    self.finish();
    EXPECT_EQ(data, std::vector<float>(4, 6));
    EXPECT_NCCL(ncclCommDestroy(self.world));
    refused(send(0), "no communicator");
  });
}

TEST(CudaOnCpuNccl, IdsThatMakeNoSenseAreRefused) {
  const std::vector<int> statuses = run_nccl_processes(2, [](int rank, Board& board) {
    ncclComm_t comm = nullptr;
    const ncclUniqueId nothing{}, id = take_id(rank, board);
    if (rank == 0) {  // waits for another rank, which does not come
      board.marks[0] = getpid();
      ncclCommInitRank(&comm, 2, id, 0);
      return;
    }
    EXPECT_EQ(ncclCommInitRank(&comm, 2, nothing, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
    wait_for_mark(board, 0);
    std::this_thread::sleep_for(500ms);  // Rank 0 has to come first, also on a busy machine.
    EXPECT_EQ(ncclCommInitRank(&comm, 3, id, 1), ncclInvalidArgument) << "of three, where another came as one of two";
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 0), ncclInvalidArgument) << "a second rank 0";
    kill(board.marks[0], SIGKILL);
    std::this_thread::sleep_for(100ms);
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 1), ncclSystemError) << "whoever made the id is gone";
    EXPECT_EQ(comm, nullptr);
    EXPECT_FALSE(shares_memory());
  });
  EXPECT_EQ(statuses, std::vector<int>({128 + SIGKILL, 0}));
}

}  // namespace
}  // namespace tera::test
