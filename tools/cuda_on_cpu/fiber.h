#pragma once
// A stack of its own on which a function runs until it switches to another fiber. All on one thread of the host.

#include <cstddef>

namespace cuda_on_cpu {

class Fiber {
 public:
  static constexpr std::size_t no_stack = 0;

  Fiber() = default;  // the host's own stack
  explicit Fiber(std::size_t stack_bytes, int colour);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() = default;  // Stacks are kept until the process ends: a race detector must not see them given back.

  // Makes this fiber begin with entry(), which must not return, when it is switched to.
  void prepare(void (*entry)());
  // From this fiber, the running one, to `next`. A fiber that ends is not switched to again before prepare().
  void switch_to(Fiber& next, bool ends = false);
  // What entry() does first.
  static void entered(Fiber& self);

 private:
  void* stack_pointer_ = nullptr;
  std::byte* stack_ = nullptr;  // the lowest address; the host's is found out whenever it is left
  std::size_t bytes_ = 0;
  int colour_ = 0;
  bool is_host_ = true;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
};

}  // namespace cuda_on_cpu
