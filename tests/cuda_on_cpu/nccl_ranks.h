#pragma once
// Ranks of a test as processes that fork from it, each with a communicator of all.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <vector>

#define EXPECT_NCCL(call) EXPECT_EQ((call), ncclSuccess) << ncclGetLastError(nullptr)

namespace tera::test {

inline constexpr std::size_t above_a_ring = 70'001;  // elements, of any size: more bytes than are in flight at once

// Shared memory for messages between ranks outside of NCCL.
struct Board {
  std::atomic<bool> has_id;
  ncclUniqueId id;
  std::atomic<int> marks[8];  // for the tests
};

struct NcclRank {
  int rank, ranks;
  ncclComm_t world;
  cudaStream_t stream;
  Board& board;

  void finish() const;  // the stream
};

// Returns the status of each rank: 0 where nothing failed, 128 + signal where one ended it.
std::vector<int> run_nccl_ranks(int ranks, const std::function<void(const NcclRank&)>& body);
void expect_all(int ranks, const std::function<void(const NcclRank&)>& body);  // to end with 0
// Runs ranks without a communicator.
std::vector<int> run_nccl_processes(int ranks, const std::function<void(int rank, Board& board)>& body);

// The id that rank 0 made.
ncclUniqueId take_id(int rank, Board& board);
void wait_for_mark(Board& board, int mark, int value = 1);
bool shares_memory();  // this process, with others, for NCCL, or has a file open that would be

}  // namespace tera::test
