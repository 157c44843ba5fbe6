// The emulated NCCL, on processes that fork from the test. Memory of an emulated device is the host's, so vectors serve
// as tensors.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/cuda_on_cpu/nccl_ranks.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

template <class T>
T number(int value) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T>
double value_of(T value) {
  if constexpr (std::is_same_v<T, __half>)
    return __half2float(value);
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __bfloat162float(value);
  else
    return static_cast<double>(value);
}

// Element i of a rank's input: small integers, whose sums and products no type rounds.
int input_of_rank(int rank, std::size_t i) {
  return static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 3) % 5);
}

template <class T>
std::vector<T> tensor_of(int rank, std::size_t count, std::size_t begin = 0) {
  std::vector<T> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = number<T>(input_of_rank(rank, begin + i));
  return all;
}

double reduced(ncclRedOp_t op, int ranks, std::size_t i) {
  double all = input_of_rank(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const double one = input_of_rank(rank, i);
    if (op == ncclMax)
      all = std::max(all, one);
    else if (op == ncclMin)
      all = std::min(all, one);
    else
      all = op == ncclProd ? all * one : all + one;
  }
  return op == ncclAvg ? all / ranks : all;
}

template <class T>
void expect_values(const std::vector<T>& got, const std::function<double(std::size_t)>& expected, const char* what) {
  int wrong = 0;
  for (std::size_t i = 0; i < got.size() && wrong < 3; ++i) {
    if (value_of(got[i]) == expected(i)) continue;
    ++wrong;
    ADD_FAILURE() << what << " of " << got.size() << " elements, at " << i << ": " << value_of(got[i]) << " instead of "
                  << expected(i);
  }
}

template <class T>
void check_reductions(const NcclRank& self, ncclDataType_t type, ncclRedOp_t op) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{37}, above_a_ring}) {
    const auto expected = [&](std::size_t i) { return reduced(op, self.ranks, i); };
    std::vector<T> in = tensor_of<T>(self.rank, count), out(count);
    EXPECT_NCCL(ncclAllReduce(in.data(), out.data(), count, type, op, self.world, self.stream));
    EXPECT_NCCL(ncclAllReduce(in.data(), in.data(), count, type, op, self.world, self.stream));
    self.finish();
    expect_values(out, expected, "all_reduce");
    expect_values(in, expected, "all_reduce in place");

    const std::size_t begin = count * static_cast<std::size_t>(self.rank);
    const auto own = [&](std::size_t i) { return expected(begin + i); };
    std::vector<T> full = tensor_of<T>(self.rank, count * static_cast<std::size_t>(self.ranks)), part(count);
    EXPECT_NCCL(ncclReduceScatter(full.data(), part.data(), count, type, op, self.world, self.stream));
    EXPECT_NCCL(ncclReduceScatter(full.data(), full.data() + begin, count, type, op, self.world, self.stream));
    self.finish();
    expect_values(part, own, "reduce_scatter");
    expect_values(std::vector<T>(full.begin() + static_cast<std::ptrdiff_t>(begin),
                                 full.begin() + static_cast<std::ptrdiff_t>(begin + count)),
                  own, "reduce_scatter in place");
  }
}

template <class T>
void check_movements(const NcclRank& self, ncclDataType_t type) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{37}, above_a_ring}) {
    const std::size_t begin = count * static_cast<std::size_t>(self.rank);
    const auto expected = [&](std::size_t i) { return input_of_rank(static_cast<int>(i / count), i); };
    const std::vector<T> part = tensor_of<T>(self.rank, count, begin);
    std::vector<T> apart(count * static_cast<std::size_t>(self.ranks)), inside = apart;
    std::copy(part.begin(), part.end(), inside.begin() + static_cast<std::ptrdiff_t>(begin));
    EXPECT_NCCL(ncclAllGather(part.data(), apart.data(), count, type, self.world, self.stream));
    EXPECT_NCCL(ncclAllGather(inside.data() + begin, inside.data(), count, type, self.world, self.stream));
    self.finish();
    expect_values(apart, expected, "all_gather");
    expect_values(inside, expected, "all_gather in place");
    for (int root = 0; root < self.ranks; ++root) {
      const auto of_root = [&](std::size_t i) { return input_of_rank(root, i); };
      std::vector<T> in = tensor_of<T>(self.rank, count), out(count);
      EXPECT_NCCL(ncclBroadcast(in.data(), out.data(), count, type, root, self.world, self.stream));
      EXPECT_NCCL(ncclBroadcast(in.data(), in.data(), count, type, root, self.world, self.stream));
      self.finish();
      expect_values(out, of_root, "broadcast");
      expect_values(in, of_root, "broadcast in place");
    }
  }
}

TEST(CudaOnCpuNccl, Reductions) {
  for (const int ranks : {1, 2, 4})
    expect_all(ranks, [](const NcclRank& self) {
      for (const ncclRedOp_t op : {ncclSum, ncclAvg, ncclMax, ncclMin, ncclProd})
        check_reductions<float>(self, ncclFloat32, op);
      for (const ncclRedOp_t op : {ncclSum, ncclMax}) {
        check_reductions<__half>(self, ncclFloat16, op);
        check_reductions<__nv_bfloat16>(self, ncclBfloat16, op);
        check_reductions<double>(self, ncclFloat64, op);
        check_reductions<std::int32_t>(self, ncclInt32, op);
        check_reductions<std::int64_t>(self, ncclInt64, op);
        check_reductions<std::uint8_t>(self, ncclUint8, op);
      }
    });
}

TEST(CudaOnCpuNccl, Movements) {
  for (const int ranks : {1, 2, 3})
    expect_all(ranks, [](const NcclRank& self) {
      check_movements<float>(self, ncclFloat32);
      check_movements<std::uint8_t>(self, ncclUint8);
      check_movements<__nv_bfloat16>(self, ncclBfloat16);
      check_movements<std::int64_t>(self, ncclInt64);
    });
}

// Rounding shows the order of additions: it is that of the ranks, on every rank.
TEST(CudaOnCpuNccl, SumsAreMadeInTheOrderOfRanks) {
  expect_all(4, [](const NcclRank& self) {
    const auto part = [](int rank, std::size_t i) {
      return std::sin(static_cast<float>(i * 13 + static_cast<std::size_t>(rank) * 7));
    };
    const std::size_t count = 5'003;
    std::vector<float> all(count);
    for (std::size_t i = 0; i < count; ++i) all[i] = part(self.rank, i);
    EXPECT_NCCL(ncclAllReduce(all.data(), all.data(), count, ncclFloat32, ncclSum, self.world, self.stream));
    self.finish();
    int order_shows = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const float a = part(0, i), b = part(1, i), c = part(2, i), d = part(3, i);
      ASSERT_EQ(all[i], ((a + b) + c) + d) << i;
      order_shows += ((a + b) + c) + d != ((c + a) + b) + d && ((a + b) + c) + d != ((d + a) + b) + c;
    }
    EXPECT_GT(order_shows, 500);
  });
}

// Every rank sends every rank, itself too, two messages of lengths of their own.
TEST(CudaOnCpuNccl, GroupsOfTransfersGoOnTogether) {
  expect_all(4, [](const NcclRank& self) {
    const auto length = [](int from, int to, int which) {
      return static_cast<std::size_t>(which == 0 ? 100'000 * (from + 1) + 1'000 * to : 17 + from + to);
    };
    std::vector<std::vector<float>> sent, got;
    EXPECT_NCCL(ncclGroupStart());
    for (int peer = 0; peer < self.ranks; ++peer)
      for (int which = 0; which < 2; ++which) {
        std::vector<float>& in = sent.emplace_back(length(self.rank, peer, which));
        std::iota(in.begin(), in.end(), static_cast<float>(self.rank * 10 + which));
        EXPECT_NCCL(ncclSend(in.data(), in.size(), ncclFloat32, peer, self.world, self.stream));
        std::vector<float>& out = got.emplace_back(length(peer, self.rank, which));
        EXPECT_NCCL(ncclRecv(out.data(), out.size(), ncclFloat32, peer, self.world, self.stream));
      }
    EXPECT_NCCL(ncclGroupEnd());
    self.finish();
    for (int peer = 0; peer < self.ranks; ++peer)
      for (int which = 0; which < 2; ++which)
        expect_values(
            got[static_cast<std::size_t>(peer * 2 + which)],
            [&](std::size_t i) { return static_cast<double>(i) + peer * 10 + which; }, "a transfer");
  });
}

// On a GPU a send may wait for its receiver; here it always does.
TEST(CudaOnCpuNccl, ASendWaitsForItsReceiver) {
  expect_all(2, [](const NcclRank& self) {
    std::vector<float> data(3, static_cast<float>(self.rank));
    if (self.rank == 0) {
      EXPECT_NCCL(ncclSend(data.data(), data.size(), ncclFloat32, 1, self.world, self.stream));
      std::this_thread::sleep_for(50ms);
      EXPECT_EQ(cudaStreamQuery(self.stream), cudaErrorNotReady);
      self.board.marks[0] = 1;
    } else {
      wait_for_mark(self.board, 0);
      EXPECT_NCCL(ncclRecv(data.data(), data.size(), ncclFloat32, 0, self.world, self.stream));
    }
    self.finish();
    EXPECT_EQ(data, std::vector<float>(3, 0));
  });
}

// Calls of one communicator are done in the order in which they were made, also on several streams; those of another
// do not wait for them.
TEST(CudaOnCpuNccl, OrderWithinACommunicator) {
  expect_all(2, [](const NcclRank& self) {
    ncclComm_t other = nullptr;
    EXPECT_NCCL(ncclCommSplit(self.world, 0, 0, &other, nullptr));
    cudaStream_t second = nullptr, third = nullptr;
    for (cudaStream_t* stream : {&second, &third})
      EXPECT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), cudaSuccess);
    std::vector<float> data(1'000, 1), beside(1'000, 1);
    const auto sum = [&](std::vector<float>& inout, ncclComm_t comm, cudaStream_t stream) {
      EXPECT_NCCL(ncclAllReduce(inout.data(), inout.data(), inout.size(), ncclFloat32, ncclSum, comm, stream));
    };
    if (self.rank == 0) wait_for_mark(self.board, 0);
    if (self.rank == 1) sum(data, self.world, self.stream);
    if (self.rank == 1) sum(data, self.world, second);
    self.board.marks[0] = 1;
    sum(beside, other, third);
    EXPECT_EQ(cudaStreamSynchronize(third), cudaSuccess);
    EXPECT_EQ(beside, std::vector<float>(1'000, 2));
    if (self.rank == 0) sum(data, self.world, self.stream);
    if (self.rank == 0) sum(data, self.world, second);
    EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
    EXPECT_EQ(data, std::vector<float>(1'000, 4));
  });
}

// A rank whose host is busy still serves those that wait for it.
TEST(CudaOnCpuNccl, WorkGoesOnWhileTheHostIsAway) {
  expect_all(2, [](const NcclRank& self) {
    std::vector<float> data(above_a_ring, 1);
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum, self.world, self.stream));
    if (self.rank == 0) self.finish();
    if (self.rank == 0) self.board.marks[0] = 1;
    wait_for_mark(self.board, 0);
    self.finish();
    EXPECT_EQ(data, std::vector<float>(above_a_ring, 2));
  });
}

TEST(CudaOnCpuNccl, Splits) {
  expect_all(4, [](const NcclRank& self) {
    const auto ranks_seen = [&](ncclComm_t comm, std::size_t size) {
      const auto own = static_cast<float>(self.rank);
      std::vector<float> all(size, -1);
      EXPECT_NCCL(ncclAllGather(&own, all.data(), 1, ncclFloat32, comm, self.stream));
      self.finish();
      return all;
    };
    using Ranks = std::vector<float>;
    ncclComm_t odd = nullptr, reversed = nullptr, three = nullptr, pair = nullptr;
    EXPECT_NCCL(ncclCommSplit(self.world, self.rank % 2, 0, &odd, nullptr));
    EXPECT_EQ(ranks_seen(odd, 2), self.rank % 2 == 0 ? Ranks({0, 2}) : Ranks({1, 3}));
    EXPECT_NCCL(ncclCommSplit(self.world, 5, -self.rank, &reversed, nullptr));
    EXPECT_EQ(ranks_seen(reversed, 4), Ranks({3, 2, 1, 0}));
    EXPECT_NCCL(ncclCommSplit(self.world, self.rank == 2 ? NCCL_SPLIT_NOCOLOR : 1, 0, &three, nullptr));
    EXPECT_EQ(three == nullptr, self.rank == 2);
    if (three != nullptr) {
      EXPECT_EQ(ranks_seen(three, 3), Ranks({0, 1, 3}));
    }
    EXPECT_NCCL(ncclCommSplit(reversed, self.rank < 2 ? 0 : 1, 0, &pair, nullptr));
    EXPECT_EQ(ranks_seen(pair, 2), self.rank < 2 ? Ranks({1, 0}) : Ranks({3, 2}));
    EXPECT_EQ(ranks_seen(self.world, 4), Ranks({0, 1, 2, 3}));
    EXPECT_TRUE(shares_memory());
    for (ncclComm_t comm : {odd, reversed, three, pair, self.world})
      if (comm != nullptr) {
        EXPECT_NCCL(ncclCommDestroy(comm));
      }
    EXPECT_FALSE(shares_memory());
  });
}

}  // namespace
}  // namespace tera::test
