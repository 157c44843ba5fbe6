// Blocks, warps and shared memory as CUDA has them, in every order of threads.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/cuda_on_cpu/in_process.h"
#include "tests/cuda_on_cpu/kernels.h"

namespace tera::test {
namespace {

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n) : n_(n) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), cudaSuccess);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data() { return data_; }
  void write(const std::vector<T>& from) { cudaMemcpy(data_, from.data(), bytes(), cudaMemcpyHostToDevice); }
  std::vector<T> read() const {
    std::vector<T> all(n_);
    EXPECT_EQ(cudaMemcpy(all.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return all;
  }

 private:
  std::size_t bytes() const { return n_ * sizeof(T); }
  T* data_ = nullptr;
  std::size_t n_;
};

void in_each_order_of_threads(const std::function<void()>& body) {
  for (const char* order : {"forward", "reverse", "random:1", "random:2"}) {
    SCOPED_TRACE(order);
    in_process({{"CUDA_ON_CPU_ORDER", order}}, body);
  }
}

TEST(CudaOnCpuBlock, BarriersSeparateWritesFromReads) {
  in_each_order_of_threads([] {
    for (const int threads : {1, 31, 32, 33, 1024}) {
      DeviceArray<int> out(static_cast<std::size_t>(3 * threads));
      ASSERT_EQ(kernels::launch_rotate(out.data(), 3, threads), cudaSuccess);
      const std::vector<int> got = out.read();
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(got[i], (static_cast<int>(i) % threads + 1) % threads) << threads << " threads, " << i;
    }
  });
}

TEST(CudaOnCpuBlock, EveryThreadRunsOnceWithItsIndex) {
  in_each_order_of_threads([] {
    DeviceArray<int> out(2 * 3 * 2 * 4 * 2 * 3);
    ASSERT_EQ(kernels::launch_write_indices(out.data(), dim3(2, 3, 2), dim3(4, 2, 3)), cudaSuccess);
    const std::vector<int> got = out.read();
    for (int i = 0; i < static_cast<int>(got.size()); ++i)
      EXPECT_EQ(got[static_cast<std::size_t>(i)], i / 24 * 1000 + i % 24);
    DeviceArray<int> counter(1);
    counter.write({5});
    ASSERT_EQ(kernels::launch_count_up(counter.data(), 7), cudaSuccess);
    EXPECT_EQ(counter.read()[0], 5 + 7 * 64);
  });
}

TEST(CudaOnCpuBlock, LanesMeet) {
  in_each_order_of_threads([] {
    DeviceArray<kernels::WarpResults> out(32);
    ASSERT_EQ(kernels::launch_warp_functions(out.data()), cudaSuccess);
    const auto got = out.read();
    for (int i = 0; i < 32; ++i) {
      const kernels::WarpResults& r = got[static_cast<std::size_t>(i)];
      EXPECT_EQ(r.from_three, 30);
      EXPECT_EQ(r.from_four_of_eight, 10 * (i / 8 * 8 + 4));
      EXPECT_EQ(r.exclusive_or, i ^ 5);
      EXPECT_EQ(r.up, i < 2 ? i : i - 2);
      EXPECT_EQ(r.ballot, 0b01001001001001001001001001001001u);
      unsigned match = 0;
      for (int j = 0; j < 32; ++j) match |= (j / 10 == i / 10 ? 1u : 0u) << j;
      EXPECT_EQ(r.match, match);
      EXPECT_EQ(r.greatest, 31u);
      EXPECT_EQ(r.least, 3u);
      EXPECT_EQ(r.any, 1);
      EXPECT_EQ(r.of_half, i < 16 ? i ^ 15 : i ^ 1);
    }
  });
}

TEST(CudaOnCpuBlock, DynamicSharedMemoryHasALimit) {
  constexpr int n = 8000;  // 64,000 bytes: more than a kernel has unasked
  std::vector<double> values(n);
  for (int i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = i;
  DeviceArray<double> out(n);
  out.write(values);
  EXPECT_EQ(kernels::launch_reverse(out.data(), n, n * sizeof(double), false), cudaErrorInvalidValue);
  EXPECT_EQ(out.read(), values);
  EXPECT_EQ(kernels::launch_reverse(out.data(), n, n * sizeof(double), true), cudaSuccess);
  EXPECT_EQ(out.read(), std::vector<double>(values.rbegin(), values.rend()));
}

TEST(CudaOnCpuBlock, WhatNoneWroteIsNotANumber) {
  DeviceArray<float> out(32);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(kernels::launch_read_unwritten(out.data()), cudaSuccess);
    for (const float value : out.read()) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(CudaOnCpuBlockDeathTest, ThreadsThatWaitForNobodyAreNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        kernels::launch_wait_for_all_lanes();
        cudaDeviceSynchronize();
      },
      "kernel wait_for_all_lanes, block \\(0,0,0\\): .*thread 0 waits in __syncwarp at .*kernels.cu:[0-9]+");
  EXPECT_DEATH(
      {
        kernels::launch_wait_at_two_barriers();
        cudaDeviceSynchronize();
      },
      "kernel wait_at_two_barriers: threads of one block wait at .*kernels.cu:[0-9]+ and at line [0-9]+");
}

TEST(CudaOnCpuBlockDeathTest, LanesThatShuffleAtTwoPlacesAreNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        int* out = nullptr;
        cudaMalloc(reinterpret_cast<void**>(&out), 32 * sizeof(int));
        kernels::launch_shuffle_at_two_places(out);
        cudaDeviceSynchronize();
      },
      "kernels.cu:[0-9]+: lane 16 comes to a shuffle of lanes ffffffff, others wait at line [0-9]+");
}

}  // namespace
}  // namespace tera::test
