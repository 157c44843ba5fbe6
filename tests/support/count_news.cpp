#include "tests/support/count_news.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
thread_local std::int64_t news = 0;
}

std::int64_t tera::test::news_so_far() { return news; }

void* operator new(std::size_t bytes) {
  ++news;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
// operator delete is replaced, too, so that under AddressSanitizer every delete matches a new of this file.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++news;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
