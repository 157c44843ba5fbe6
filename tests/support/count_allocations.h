#pragma once
// Counts real allocations of the whole process, on all threads, between start and stop. A test that uses it links
// count_allocations.cpp, which replaces the C library's malloc family and mmap.

#include <cstdint>

namespace tera::test {

bool can_count_allocations();  // not under a sanitizer, which has an allocator of its own

void start_counting_allocations();
std::int64_t stop_counting_allocations();  // calls since the start

}  // namespace tera::test
