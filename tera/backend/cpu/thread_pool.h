#pragma once
// The thread pool of a rank. Task borders do not depend on the number of threads, and the result of a task does not
// depend on the thread that runs it: so results depend on neither.

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "tera/base/function_ref.h"

namespace tera::cpu {

class ThreadPool {
 public:
  using Task = FunctionRef<void(std::int64_t index, int worker)>;

  explicit ThreadPool(int threads);  // the caller is one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(helpers_.size()) + 1; }

  // Runs task(index, worker) for every index in [0, count), in any order, and returns when all are done. worker is in
  // [0, size()) and names the thread, for per-thread scratch. Tasks must not throw. Not reentrant.
  void parallel_for(std::int64_t count, Task task);

 private:
  void help(int worker);
  void work(int worker);
  void stop();

  std::vector<std::thread> helpers_;
  const Task* task_ = nullptr;
  std::int64_t count_ = 0;
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::uint32_t> round_{0};    // bumped to start a round; helpers wait on it
  alignas(64) std::atomic<std::uint32_t> running_{0};  // helpers still in the round; the caller waits on it
  std::atomic<bool> stop_{false};
};

}  // namespace tera::cpu
