#pragma once
// Streams, events and memory that end with their scope.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <utility>

#include "tools/cuda_on_cpu/stream.h"

namespace tera::test {

class Stream {
 public:
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, flags), cudaSuccess);
  }
  ~Stream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor): stands for its handle
  void wait() const { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDefault) {
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, flags), cudaSuccess);
  }
  ~Event() { EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }  // NOLINT(google-explicit-constructor): stands for its handle

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory of the device or pinned memory of the host. The host may read both here.
template <class T>
class Memory {
 public:
  enum class Of { device, host };
  explicit Memory(std::size_t count, Of place = Of::device) : place_(place), count_(count) {
    void* begin = nullptr;
    EXPECT_EQ(place == Of::device ? cudaMalloc(&begin, count * sizeof(T)) : cudaHostAlloc(&begin, count * sizeof(T), 0),
              cudaSuccess);
    begin_ = static_cast<T*>(begin);
  }
  ~Memory() { EXPECT_EQ(place_ == Of::device ? cudaFree(begin_) : cudaFreeHost(begin_), cudaSuccess); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  T* get() const { return begin_; }
  T& operator[](std::size_t i) const { return begin_[i]; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  Of place_;
  std::size_t count_;
  T* begin_ = nullptr;
};

// Launches one thread that calls `body`.
inline void launch(cudaStream_t stream, std::function<void()> body) {
  cuda_on_cpu::enqueue_kernel(stream, {.grid = 1, .block = 1, .kernel = std::move(body), .name = "body"});
}

}  // namespace tera::test
