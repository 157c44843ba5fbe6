#include "tools/cuda_on_cpu/fiber.h"

#include <sys/mman.h>

#include "tools/cuda_on_cpu/stop.h"

#ifdef CUDA_ON_CPU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the registers that a call preserves and the stack pointer, and goes on where `to` was saved.
extern "C" void cuda_on_cpu_switch(void** save, void* to);
asm(R"(
.text
.globl cuda_on_cpu_switch
.hidden cuda_on_cpu_switch
.type cuda_on_cpu_switch,@function
cuda_on_cpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_on_cpu_switch,.-cuda_on_cpu_switch
)");

namespace cuda_on_cpu {
namespace {

constexpr int saved_registers = 6;
[[maybe_unused]] Fiber* switched_from = nullptr;

}  // namespace

Fiber::Fiber(std::size_t stack_bytes, int colour) : bytes_(stack_bytes), colour_(colour), is_host_(false) {
  constexpr std::size_t guard = 4096;  // a stack that grows too far ends the program instead of another's data
  void* all =
      mmap(nullptr, stack_bytes + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED || mprotect(all, guard, PROT_NONE) != 0) stop("no memory for the stack of a thread");
  stack_ = static_cast<std::byte*>(all) + guard;
}

void Fiber::prepare(void (*entry)()) {
  // Stacks begin at different lines of a cache's set, else a thousand of them would evict each other.
  auto** top = reinterpret_cast<void**>(stack_ + bytes_ - static_cast<std::size_t>(colour_ % 16) * 256);
  *--top = nullptr;  // At the first instruction of a function the stack pointer is 8 off a multiple of 16.
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < saved_registers; ++i) *--top = nullptr;
  stack_pointer_ = top;
  fake_stack_ = nullptr;
}

void Fiber::switch_to(Fiber& next, [[maybe_unused]] bool ends) {
#ifdef CUDA_ON_CPU_ASAN
  switched_from = this;
  __sanitizer_start_switch_fiber(ends ? nullptr : &fake_stack_, next.stack_, next.bytes_);
#endif
  cuda_on_cpu_switch(&stack_pointer_, next.stack_pointer_);
  entered(*this);
}

void Fiber::entered([[maybe_unused]] Fiber& self) {
#ifdef CUDA_ON_CPU_ASAN
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(self.fake_stack_, &bottom, &bytes);
  if (switched_from->is_host_) {  // Each launch may come from another thread of the host.
    switched_from->stack_ = static_cast<std::byte*>(const_cast<void*>(bottom));
    switched_from->bytes_ = bytes;
  }
#endif
}

}  // namespace cuda_on_cpu
