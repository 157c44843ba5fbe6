#include "tests/support/count_allocations.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

bool tera::test::can_count_allocations() { return false; }
void tera::test::start_counting_allocations() {}
std::int64_t tera::test::stop_counting_allocations() { return 0; }

#else

namespace {
std::atomic<bool> counting{false};
std::atomic<std::int64_t> calls{0};

void note() {
  if (counting.load(std::memory_order_relaxed)) calls.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

bool tera::test::can_count_allocations() { return true; }
void tera::test::start_counting_allocations() {
  calls = 0;
  counting = true;
}
std::int64_t tera::test::stop_counting_allocations() {
  counting = false;
  return calls;
}

// The C library's own functions, under the names that it keeps for whoever replaces the public ones.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) {
  note();
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  note();
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  note();
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  note();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  note();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  note();
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
void* mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  note();
  const long mapped = syscall(SYS_mmap, address, bytes, protection, flags, file, offset);  // NOLINT
  return reinterpret_cast<void*>(mapped);                                                  // NOLINT
}
}

#endif
