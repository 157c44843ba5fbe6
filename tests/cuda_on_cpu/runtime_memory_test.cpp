// The emulated CUDA runtime: memory and copies, errors, several devices.

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda_on_cpu/cuda_objects.h"
#include "tests/cuda_on_cpu/in_process.h"

namespace tera::test {
namespace {

using Ints = Memory<int>;

TEST(CudaOnCpuRuntime, FreshMemoryIsNoNumber) {
  const Memory<float> memory(1000);
  for (std::size_t i = 0; i < 1000; ++i) EXPECT_NE(memory[i], memory[i]);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 256, 0u);
}

TEST(CudaOnCpuRuntime, MemoryIsLimitedAndAccountedFor) {
  in_process({{"CUDA_ON_CPU_MEMORY_MB", "10"}}, [] {
    constexpr std::size_t MiB = std::size_t{1} << 20;
    std::size_t free = 0, total = 0;
    void *first = nullptr, *second = nullptr;
    ASSERT_EQ(cudaMalloc(&first, 6 * MiB), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&second, 5 * MiB), cudaErrorMemoryAllocation);
    EXPECT_EQ(second, nullptr);
    EXPECT_EQ(cudaMalloc(&second, ~std::size_t{0}), cudaErrorMemoryAllocation);
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    EXPECT_EQ(total, 10 * MiB);
    EXPECT_EQ(free, 4 * MiB);
    ASSERT_EQ(cudaFree(first), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&second, 10 * MiB), cudaSuccess);
    ASSERT_EQ(cudaFree(second), cudaSuccess);
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    EXPECT_EQ(free, total);
  });
}

TEST(CudaOnCpuRuntime, OnlyWhatWasAllocatedIsFreed) {
  int on_stack = 0;
  void *device = nullptr, *host = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 64), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&host, 64), cudaSuccess);
  EXPECT_EQ(cudaFree(&on_stack), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(static_cast<char*>(device) + 16), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(host), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
}

TEST(CudaOnCpuRuntime, FreeingWaitsForTheDevice) {
  in_each_order([] {
    const Stream stream;
    bool done = false;
    {
      const Ints memory(64);
      launch(stream, [&] {
        memory[63] = 1;
        done = true;
      });
    }
    EXPECT_TRUE(done);
  });
}

// A host that changes the source too early changes what arrives, if the source is pinned.
TEST(CudaOnCpuRuntime, PinnedMemoryIsReadWhenItsTurnComes) {
  in_process({{"CUDA_ON_CPU_STREAMS", "lazy"}}, [] {
    const Stream stream;
    const Ints device(2), pinned(1, Ints::Of::host);
    std::vector<int> pageable{1};
    pinned[0] = 1;
    ASSERT_EQ(cudaMemcpyAsync(device.get(), pinned.get(), 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(device.get() + 1, pageable.data(), 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
    pinned[0] = pageable[0] = 2;
    stream.wait();
    EXPECT_EQ(device[0], 2);
    EXPECT_EQ(device[1], 1);
  });
}

TEST(CudaOnCpuRuntime, PageableMemoryIsWrittenBeforeACopyReturns) {
  in_process({{"CUDA_ON_CPU_STREAMS", "lazy"}}, [] {
    const Stream stream;
    const Ints device(1), pinned(1, Ints::Of::host);
    int pageable = 0;
    pinned[0] = 0;
    launch(stream, [&] { device[0] = 7; });
    ASSERT_EQ(cudaMemcpyAsync(pinned.get(), device.get(), 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    EXPECT_EQ(pinned[0], 0);
    ASSERT_EQ(cudaMemcpyAsync(&pageable, device.get(), 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    EXPECT_EQ(pageable, 7);
    EXPECT_EQ(pinned[0], 7);  // it came before
  });
}

TEST(CudaOnCpuRuntime, CopiesOutsideOfMemoryAreRefused) {
  const Ints device(4);
  int host[8] = {};
  EXPECT_EQ(cudaMemcpyAsync(device.get(), host, 20, cudaMemcpyHostToDevice, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host, host + 4, 16, cudaMemcpyHostToDevice, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host, device.get(), 16, cudaMemcpyDeviceToDevice, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(device.get() + 2, 0, 12, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(host, 0, 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(device.get(), 1, 16), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(host, device.get(), 16, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(host[3], 0x01010101);
  EXPECT_EQ(host[4], 0);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

// ---- errors

TEST(CudaOnCpuRuntime, TheLastErrorStaysUntilItIsAskedFor) {
  EXPECT_EQ(cudaSetDevice(99), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  std::thread([] { EXPECT_EQ(cudaGetLastError(), cudaSuccess); }).join();
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

cudaError_t error_of_launch(dim3 grid, dim3 block, std::size_t shared = 0, const void* function = nullptr) {
  cuda_on_cpu::enqueue_kernel(
      nullptr, {.grid = grid, .block = block, .shared_bytes = shared, .kernel = [] {}, .function = function});
  return cudaGetLastError();
}

TEST(CudaOnCpuRuntime, LaunchesThatNoGpuSupportsAreRefused) {
  EXPECT_EQ(error_of_launch(1, 1024), cudaSuccess);
  EXPECT_EQ(error_of_launch(1, 1025), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of_launch(1, dim3(32, 33)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of_launch(1, dim3(1, 1, 65)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of_launch(1, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of_launch(0, 32), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of_launch(dim3(1, 65536), 32), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(CudaOnCpuRuntime, SharedMemoryBeyondTheLimitOfAKernelIsRefused) {
  const char kernels[2] = {};  // their addresses stand for two kernels
  constexpr cudaFuncAttribute limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  EXPECT_EQ(error_of_launch(1, 32, 49152, &kernels[0]), cudaSuccess);
  EXPECT_EQ(error_of_launch(1, 32, 49153, &kernels[0]), cudaErrorInvalidValue);
  ASSERT_EQ(cudaFuncSetAttribute(&kernels[0], limit, 100000), cudaSuccess);
  EXPECT_EQ(error_of_launch(1, 32, 100000, &kernels[0]), cudaSuccess);
  EXPECT_EQ(error_of_launch(1, 32, 100001, &kernels[0]), cudaErrorInvalidValue);
  EXPECT_EQ(error_of_launch(1, 32, 49153, &kernels[1]), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(&kernels[1], limit, 232449), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(CudaOnCpuRuntime, HandlesThatAreNoneAreRefused) {
  int no_stream = 0;
  auto* const stream = reinterpret_cast<cudaStream_t>(&no_stream);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(nullptr, nullptr), cudaErrorInvalidResourceHandle);
  cudaStream_t created = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&created, 77), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(CudaOnCpuRuntime, TheDriverIsNotThere) {
  void* function = &function;
  cudaDriverEntryPointQueryResult found{};
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
            cudaErrorNotSupported);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(found, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
}

// ---- devices

TEST(CudaOnCpuRuntime, ADeviceHasTheseProperties) {
  cudaDeviceProp properties{};
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_EQ(std::string(properties.name), "emulated on the CPU");
  EXPECT_EQ(properties.major, 9);
  int processors = 0, shared = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), cudaSuccess);
  EXPECT_EQ(processors, 4);
  EXPECT_EQ(shared, 232448);
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 1), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST(CudaOnCpuRuntime, EachDeviceHasItsOwn) {
  in_process({{"CUDA_ON_CPU_DEVICES", "2"}, {"CUDA_ON_CPU_MEMORY_MB", "4"}, {"CUDA_ON_CPU_STREAMS", "lazy"}}, [] {
    int count = 0;
    ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    EXPECT_EQ(count, 2);
    cudaDeviceProp properties[2];
    for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGetDeviceProperties(&properties[i], i), cudaSuccess);
    EXPECT_NE(std::memcmp(&properties[0].uuid, &properties[1].uuid, sizeof properties[0].uuid), 0);

    const Stream first;
    const Event of_first;
    const Memory<char> memory(std::size_t{3} << 20);
    bool done = false;
    launch(first, [&] { done = true; });
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    std::size_t free = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    EXPECT_EQ(free, total);
    const Stream second;
    launch(first, [] {});
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaEventRecord(of_first, second), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaMemsetAsync(memory.get(), 3, 16, first), cudaSuccess);  // copies may be enqueued there
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_FALSE(done);
    // The new thread begins with the first device.
    std::thread([&] { EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess); }).join();
    EXPECT_TRUE(done);
    EXPECT_EQ(memory[15], 3);
    cudaGetLastError();
  });
}

}  // namespace
}  // namespace tera::test
