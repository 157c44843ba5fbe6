#include "tera/backend/cpu/thread_pool.h"

#include <system_error>

#include "tera/base/error.h"

namespace tera::cpu {
namespace {

// Between ops of one step the next round comes within microseconds, so spin a little before sleeping. It spins
// only briefly, because ranks that are threads may outnumber cores.
constexpr int spins_before_sleep = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void wait_while_equal(std::atomic<std::uint32_t>& value, std::uint32_t old) {
  for (int i = 0; i < spins_before_sleep; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  try {
    for (int worker = 1; worker < threads; ++worker) helpers_.emplace_back([this, worker] { help(worker); });
  } catch (const std::system_error& error) {
    const std::size_t started = helpers_.size() + 1;
    stop();
    fail_user("dist.threads={}: the system gives no more than {} threads ({})", threads, started, error.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

void ThreadPool::parallel_for(std::int64_t count, Task task) {
  if (helpers_.empty() || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) task(i, 0);
    return;
  }
  task_ = &task;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<std::uint32_t>(helpers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  work(0);
  for (std::uint32_t left = running_.load(std::memory_order_acquire); left != 0;
       left = running_.load(std::memory_order_acquire))
    wait_while_equal(running_, left);
}

void ThreadPool::work(int worker) {
  for (std::int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
       i = next_.fetch_add(1, std::memory_order_relaxed))
    (*task_)(i, worker);
}

void ThreadPool::help(int worker) {
  std::uint32_t seen = 0;
  while (true) {
    wait_while_equal(round_, seen);
    ++seen;
    if (stop_) return;
    work(worker);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace tera::cpu
