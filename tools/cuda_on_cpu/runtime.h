#pragma once
// What the functions of the runtime share. A stream is a list of work. The threads of the host that wait for something
// do the work, one piece at a time, each of another stream; while a piece is done the lock is free, so that others may
// put work on streams and ask for results.

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <vector>

namespace cuda_on_cpu {

// A point in a stream: after the first `count` pieces of work that it ever had.
struct Point {
  std::shared_ptr<CUstream_st> stream;  // null: reached from the beginning
  std::uint64_t count = 0;
  bool reached() const;
};

using Step = std::function<bool()>;  // true: done; else it is called again

struct Work {
  Step step;
  std::vector<Point> after = {};
};

struct Capture {
  std::uint64_t id;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool invalid = false;
  std::vector<Step> nodes = {};
};

}  // namespace cuda_on_cpu

// CUDA's names of what its handles point to.
// NOLINTBEGIN(readability-identifier-naming)
struct CUstream_st : std::enable_shared_from_this<CUstream_st> {
  int number, device;
  bool blocking;  // ordered with the device's default stream
  bool destroyed = false;
  std::deque<cuda_on_cpu::Work> work = {};
  std::uint64_t enqueued = 0, finished = 0;
  bool busy = false;            // a thread does the first piece
  std::uint64_t last_poll = 0;  // number of the poll that found the first piece not done; 0: none
  std::unique_ptr<cuda_on_cpu::Capture> capture = nullptr;

  CUstream_st(int its_number, int its_device, bool is_blocking)
      : number(its_number), device(its_device), blocking(is_blocking) {}
};

struct CUevent_st {
  int device;
  bool times;
  cuda_on_cpu::Point recorded = {};
  std::shared_ptr<double> milliseconds = nullptr;  // when the record was reached; null: never recorded
  std::uint64_t captured = 0;                      // the capture that has the last record
};

struct CUgraph_st {
  std::vector<cuda_on_cpu::Step> nodes;
};

struct CUgraphExec_st {
  std::vector<cuda_on_cpu::Step> nodes;
};
// NOLINTEND(readability-identifier-naming)

namespace cuda_on_cpu {

constexpr int host_memory = -1;

struct Allocation {
  std::size_t bytes;
  int device;  // number of a device, or host_memory
};

struct Machine {
  Machine();

  std::mutex mutex;
  std::condition_variable changed;                    // work was added or done
  std::vector<std::shared_ptr<CUstream_st>> streams;  // oldest first, the devices' default streams before all others
  int streams_made = 0;
  std::uint64_t polls = 0, captures = 0;
  std::mt19937 random;
  std::map<std::uintptr_t, Allocation> memory;  // by the address of the first byte
  std::vector<std::size_t> used;                // bytes, by device
  std::map<const void*, int> shared_limits;     // bytes, for kernels that asked for more than the default
  std::thread driver;                           // start_progress_thread()
  bool ending = false;
};
Machine& machine();

using Lock = std::unique_lock<std::mutex>;
inline Lock lock_machine() { return Lock(machine().mutex); }

int current_device();  // the calling host thread's device

// For cudaGetLastError; returns its argument.
cudaError_t fail(cudaError_t error);

// ---- streams; all with the lock held

CUstream_st* find_stream(cudaStream_t stream);  // null: there is none
CUstream_st& default_stream(int device);
Point end_of(CUstream_st& stream);
std::vector<Point> ends_of(int device);  // ends of all its streams

// Puts work at the end of a stream, or into the graph that captures it. `end`, if given, is behind it then.
cudaError_t append(CUstream_st& stream, Work work, Point* end = nullptr);
// Called after append(): does the work that CUDA_ON_CPU_STREAMS wants done at once.
void progress_after_append(Lock& lock);
cudaError_t enqueue(Lock& lock, CUstream_st& stream, Step step);  // both

// Does work until the points are reached.
void wait_until(Lock& lock, std::span<const Point> points);
// Does one piece of work towards them, if any can be done.
void progress_towards(Lock& lock, std::span<const Point> points);

// Called by functions that are not allowed while this thread captures a stream: ends the capture in failure.
cudaError_t refuse_if_capturing();
// Called by functions that wait for all of a device: no thread may capture one of its streams.
cudaError_t refuse_if_device_captured(int device);
// Makes the capture worthless, and returns the error.
cudaError_t invalidate(CUstream_st& stream, cudaError_t error);

}  // namespace cuda_on_cpu
