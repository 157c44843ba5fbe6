#pragma once
// ThreadSanitizer sees every thread of a kernel as a thread of its own; only barriers and exchanges of lanes order
// them. Without it nothing here does anything.

#include <vector>

#include "tools/cuda_on_cpu/fiber.h"

#ifdef CUDA_ON_CPU_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace cuda_on_cpu {

class RaceDetector {
 public:
#ifdef CUDA_ON_CPU_TSAN
  // A stack that another thread had before would look like a race.
  static constexpr bool has_stack_per_thread() { return true; }

  void begin_launch(int threads) {
    host_ = __tsan_get_current_fiber();
    while (static_cast<int>(threads_.size()) < threads) threads_.push_back({__tsan_create_fiber(0), nullptr});
    __tsan_release(&launch_mark_);
  }
  void end_launch() {
    for (char& mark : block_marks_) __tsan_acquire(&mark);
  }
  void begin_block() { phase_ ^= 1; }
  // Blocks use the same shared memory one after another, so each is ordered after the one before it.
  void begin_thread() {
    __tsan_acquire(&launch_mark_);
    __tsan_acquire(&block_marks_[1 - phase_]);
  }
  void end_thread() { __tsan_release(&block_marks_[phase_]); }
  void switch_to(int thread) {
    __tsan_switch_to_fiber(threads_[static_cast<std::size_t>(thread)].sanitizers, __tsan_switch_to_fiber_no_sync);
  }
  void switch_to_host() { __tsan_switch_to_fiber(host_, __tsan_switch_to_fiber_no_sync); }
  static void release(void* mark) { __tsan_release(mark); }
  static void acquire(void* mark) { __tsan_acquire(mark); }
  Fiber* fiber_of(int thread) const { return threads_[static_cast<std::size_t>(thread)].fiber; }
  Fiber* keep(int thread, Fiber* fiber) { return threads_[static_cast<std::size_t>(thread)].fiber = fiber; }

 private:
  struct Thread {
    void* sanitizers;
    Fiber* fiber;
  };
  void* host_ = nullptr;
  std::vector<Thread> threads_;
  int phase_ = 0;
  char launch_mark_ = 0, block_marks_[2] = {};
#else
  static constexpr bool has_stack_per_thread() { return false; }
  void begin_launch(int) {}
  void end_launch() {}
  void begin_block() {}
  void begin_thread() {}
  void end_thread() {}
  void switch_to(int) {}
  void switch_to_host() {}
  static void release(void*) {}
  static void acquire(void*) {}
  static Fiber* fiber_of(int) { return nullptr; }
  static Fiber* keep(int, Fiber* fiber) { return fiber; }
#endif
};

}  // namespace cuda_on_cpu
