#pragma once
// Counts real allocations of the whole process, on all threads, while it is told to. A test that uses it links
// count_allocations.cpp, which takes the place of the C library's malloc family and of mmap.

#include <cstdint>

namespace tera::test {

bool can_count_allocations();  // not under a sanitizer, which has an allocator of its own

void start_counting_allocations();
std::int64_t stop_counting_allocations();  // calls since the start

}  // namespace tera::test
