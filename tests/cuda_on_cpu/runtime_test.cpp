// The emulated CUDA runtime: the order of work, for every order among streams.

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/cuda_on_cpu/cuda_objects.h"
#include "tests/cuda_on_cpu/in_process.h"

namespace tera::test {
namespace {

constexpr int rounds = 20;

TEST(CudaOnCpuRuntime, AStreamDoesItsWorkInItsOrder) {
  in_each_order([] {
    const Stream stream;
    std::vector<int> done;
    for (int i = 0; i < 10; ++i) launch(stream, [&done, i] { done.push_back(i); });
    cuda_on_cpu::enqueue_host(stream, [&done] { done.push_back(10); });
    stream.wait();
    EXPECT_EQ(done, (std::vector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  });
}

TEST(CudaOnCpuRuntime, AKernelSeesItsIndices) {
  const Memory<int> values(6 * 64);
  cuda_on_cpu::enqueue_kernel(nullptr, {.grid = dim3(3, 2), .block = dim3(32, 2), .kernel = [&values] {
                                          const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
                                          const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
                                          values[block * 64 + thread] = static_cast<int>(block * 100 + thread);
                                        }});
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (int i = 0; i < 6 * 64; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], i / 64 * 100 + i % 64);
}

// A value goes from one stream to the other, by `rounds` events; returns how often the second came too early.
int count_early(bool waits) {
  const Stream producer, consumer;
  int early = 0;
  for (int round = 1; round <= rounds; ++round) {
    const Event produced;
    int value = 0;
    for (int i = 0; i < 3; ++i) launch(producer, [] {});
    launch(producer, [&] { value = round; });
    EXPECT_EQ(cudaEventRecord(produced, producer), cudaSuccess);
    EXPECT_EQ(waits ? cudaStreamWaitEvent(consumer, produced, 0) : cudaSuccess, cudaSuccess);
    launch(consumer, [&] { early += value != round; });
    producer.wait();
    consumer.wait();
  }
  return early;
}

TEST(CudaOnCpuRuntime, AStreamWaitsForAnEvent) {
  in_each_order([] { EXPECT_EQ(count_early(true), 0); });
}

TEST(CudaOnCpuRuntime, RandomOrderFindsAMissingWait) {
  for (const char* order : {"random:1", "random:2", "random:3"})
    in_process({{"CUDA_ON_CPU_STREAMS", order}}, [] { EXPECT_GT(count_early(false), 0); });
  // Control case without an event: the host waits for the first stream, which therefore runs first.
  for (const char* order : {"lazy", "eager"})
    in_process({{"CUDA_ON_CPU_STREAMS", order}}, [] { EXPECT_EQ(count_early(false), 0); });
}

TEST(CudaOnCpuRuntime, AWaitIsForTheLastRecordBeforeIt) {
  in_each_order([] {
    const Stream first, second;
    const Event event;
    int value = 0, seen = -1;
    ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);  // never recorded: nothing to wait for
    launch(second, [&] { seen = 0; });
    second.wait();
    EXPECT_EQ(seen, 0);
    launch(first, [&] { value = 1; });
    ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
    launch(second, [&] { seen = value; });
    // A later record, after work that waits for the second stream itself, makes no cycle.
    const Event back;
    ASSERT_EQ(cudaEventRecord(back, second), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(first, back, 0), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
    second.wait();
    EXPECT_EQ(seen, 1);
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  });
}

TEST(CudaOnCpuRuntime, TheDefaultStreamIsOrderedWithBlockingOnes) {
  in_each_order([] {
    const Stream first(cudaStreamDefault), second(cudaStreamDefault);
    for (int round = 0; round < rounds; ++round) {
      std::vector<int> done;
      launch(first, [&] { done.push_back(1); });
      launch(nullptr, [&] { done.push_back(2); });
      launch(second, [&] { done.push_back(3); });
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      EXPECT_EQ(done, (std::vector{1, 2, 3}));
    }
  });
}

TEST(CudaOnCpuRuntime, TheDefaultStreamIsNotOrderedWithOthers) {
  in_process({{"CUDA_ON_CPU_STREAMS", "random:1"}}, [] {
    const Stream stream;
    int overtaken = 0;
    for (int round = 0; round < rounds; ++round) {
      bool done = false;
      launch(nullptr, [&] { done = true; });
      launch(stream, [&] { overtaken += !done; });
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    EXPECT_GT(overtaken, 0);
    EXPECT_LT(overtaken, rounds);
  });
}

TEST(CudaOnCpuRuntime, AQueryReportsWhatIsNotDoneYet) {
  in_process({{"CUDA_ON_CPU_STREAMS", "lazy"}}, [] {
    const Stream stream;
    const Event event;
    EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
    for (int i = 0; i < 5; ++i) launch(stream, [] {});
    ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    int queries = 0;
    while (cudaEventQuery(event) == cudaErrorNotReady) ASSERT_LT(++queries, 100);
    EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  });
}

TEST(CudaOnCpuRuntime, EventsReportTime) {
  in_process({{"CUDA_ON_CPU_STREAMS", "lazy"}}, [] {
    const Stream stream;
    const Event begin, end, without(cudaEventDisableTiming);
    float milliseconds = -1;
    EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorInvalidResourceHandle);  // never recorded
    ASSERT_EQ(cudaEventRecord(begin, stream), cudaSuccess);
    cuda_on_cpu::enqueue_host(stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    ASSERT_EQ(cudaEventRecord(end, stream), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(without, stream), cudaSuccess);
    EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorNotReady);
    stream.wait();
    ASSERT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
    EXPECT_GE(milliseconds, 19.9F);
    EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, without), cudaErrorInvalidResourceHandle);
  });
}

TEST(CudaOnCpuRuntime, TheHostWaitsForAnEventOnly) {
  in_process({{"CUDA_ON_CPU_STREAMS", "lazy"}}, [] {
    const Stream stream;
    const Event event;
    int done = 0;
    for (int i = 0; i < 3; ++i) launch(stream, [&] { ++done; });
    ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
    launch(stream, [&] { ++done; });
    ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
    EXPECT_EQ(done, 3);
    stream.wait();
    EXPECT_EQ(done, 4);
  });
}

TEST(CudaOnCpuRuntime, ADestroyedStreamStillDoesItsWork) {
  in_each_order([] {
    bool done = false;
    {
      const Stream stream;
      launch(stream, [&] { done = true; });
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(done);
  });
}

TEST(CudaOnCpuRuntime, ACaptureIsDoneWhenItIsLaunched) {
  in_each_order([] {
    const Stream stream;
    const Event event;
    int value = 0;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    launch(stream, [&] { value += 1; });
    ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaSuccess);
    launch(stream, [&] { value *= 2; });
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    stream.wait();
    EXPECT_EQ(value, 0);
    std::size_t nodes = 0;
    ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
    EXPECT_EQ(nodes, 2u);
    cudaGraphExec_t ready = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
    ASSERT_EQ(cudaGraphExecDestroy(ready), cudaSuccess);
    stream.wait();
    EXPECT_EQ(value, 14);
    EXPECT_EQ(cudaEventQuery(event), cudaErrorCapturedEvent);
  });
}

// Each of these calls makes the capture fail, and nothing of it remains.
TEST(CudaOnCpuRuntime, ACaptureRefusesWhatCannotBePartOfIt) {
  const Stream stream, blocking(cudaStreamDefault);
  const Event outside;
  ASSERT_EQ(cudaEventRecord(outside, stream), cudaSuccess);
  stream.wait();
  void* memory = nullptr;
  const std::pair<cudaError_t, std::function<cudaError_t()>> calls[] = {
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(stream); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaDeviceSynchronize(); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&memory, 64); }},
      {cudaErrorStreamCaptureIsolation, [&] { return cudaStreamWaitEvent(stream, outside, 0); }},
      {cudaErrorIllegalState, [&] { return cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal); }},
  };
  for (const auto& [error, call] : calls) {
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(call(), error);
    EXPECT_EQ(cudaGetLastError(), error);
    cudaGraph_t graph = nullptr;
    const bool fails = error != cudaErrorIllegalState;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), fails ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    EXPECT_EQ(graph == nullptr, fails);
    EXPECT_EQ(graph ? cudaGraphDestroy(graph) : cudaSuccess, cudaSuccess);
  }
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal), cudaErrorStreamCaptureUnsupported);
  ASSERT_EQ(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
}

TEST(CudaOnCpuRuntime, OtherThreadsAreFreeDuringACapture) {
  const Stream stream;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cudaGraph_t graph = nullptr;
  std::thread([&] {
    const Memory<int> memory(16);
    EXPECT_EQ(cudaMemsetAsync(memory.get(), 1, memory.bytes(), nullptr), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    EXPECT_EQ(memory[15], 0x01010101);
  }).join();
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// ---- several threads of the host

// The first thread's work ends only after the second one's: it must not block other threads meanwhile.
TEST(CudaOnCpuRuntime, WorkOfOneThreadDoesNotKeepOthersOut) {
  in_each_order([] {
    const Stream slow, quick;
    std::atomic<bool> begun = false, quick_done = false;
    std::thread first([&] {
      cuda_on_cpu::enqueue_host(slow, [&] {
        begun = true;
        while (!quick_done) std::this_thread::yield();
      });
      slow.wait();
    });
    while (!begun) std::this_thread::yield();
    launch(quick, [&] { quick_done = true; });
    quick.wait();
    EXPECT_TRUE(quick_done);
    first.join();
  });
}

// Ranks hand a number around; each adds one. Every step looks whether the rank before has left it.
TEST(CudaOnCpuRuntime, PolledWorkGoesOnBetweenThreads) {
  in_each_order([] {
    constexpr int ranks = 8, laps = 5;
    std::atomic<int> number = 0;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&number, rank] {
        const Stream stream;
        int before = -1;
        for (int lap = 0; lap < laps; ++lap) {
          cuda_on_cpu::enqueue_steps(stream, [&number, wanted = lap * ranks + rank] { return number == wanted; });
          launch(stream, [&number, &before] { before = number++; });
        }
        stream.wait();
        EXPECT_EQ(before, (laps - 1) * ranks + rank);
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(number, ranks * laps);
  });
}

// What a polled piece of work waits for may be on a stream that nobody waits for.
TEST(CudaOnCpuRuntime, OtherStreamsGoOnWhileWorkIsPolled) {
  in_each_order([] {
    const Stream asks, answers;
    bool answered = false;
    int polls = 0;
    cuda_on_cpu::enqueue_steps(asks, [&] {
      ++polls;
      return answered;
    });
    for (int i = 0; i < 3; ++i) launch(answers, [] {});
    launch(answers, [&] { answered = true; });
    asks.wait();
    EXPECT_TRUE(answered);
    EXPECT_GE(polls, 1);
  });
}

TEST(CudaOnCpuRuntime, StreamsGoOnByThemselves) {
  in_each_order([] {
    cuda_on_cpu::start_progress_thread();
    const Stream first, second;
    const Event event;
    std::atomic<bool> allowed = false, done = false;
    cuda_on_cpu::enqueue_steps(first, [&] { return allowed.load(); });
    ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
    cuda_on_cpu::enqueue_host(second, [&] { done = true; });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(done);
    allowed = true;
    const auto begin = std::chrono::steady_clock::now();
    while (!done && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) std::this_thread::yield();
    EXPECT_TRUE(done);
  });
}

}  // namespace
}  // namespace tera::test
