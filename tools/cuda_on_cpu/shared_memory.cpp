#include "tools/cuda_on_cpu/shared_memory.h"

#include <cstdint>
#include <vector>

#include "tools/cuda_on_cpu/stop.h"

extern "C" {
// AddressSanitizer's, where the program has it.
__attribute__((weak)) void __asan_poison_memory_region(const void volatile* begin, std::size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const void volatile* begin, std::size_t bytes);
}

namespace cuda_on_cpu {
namespace {

using Word = std::uint64_t;
constexpr Word never_written = ~Word{0};  // NaN in every float type

struct Section {
  Word *begin, *end;
};
std::vector<Section>& sections() {
  static auto* const all = new std::vector<Section>;
  return *all;
}

alignas(1024) Word dynamic_memory[max_shared_bytes / sizeof(Word)];

// A section is filled as a whole, with the red zones that AddressSanitizer puts between its variables; not by memset,
// which it watches.
__attribute__((no_sanitize("address"), optimize("no-tree-loop-distribute-patterns"))) void fill(Word* begin,
                                                                                                Word* end) {
  for (; begin < end; ++begin) *begin = never_written;
}

}  // namespace

void add_shared_section(unsigned char* begin, unsigned char* end) {
  const auto word = [](unsigned char* address, std::uintptr_t up) {
    return reinterpret_cast<Word*>((reinterpret_cast<std::uintptr_t>(address) + up) & ~std::uintptr_t{7});
  };
  Section section{word(begin, 7), word(end, 0)};
  for (const Section& known : sections())
    if (known.begin == section.begin) return;
  fill(section.begin, section.end);
  sections().push_back(section);
}

SharedMemory::SharedMemory(std::size_t dynamic_bytes) : dynamic_bytes_(dynamic_bytes) {
  if (dynamic_bytes > max_shared_bytes) stop("a launch with %zu bytes of shared memory", dynamic_bytes);
  if (__asan_poison_memory_region)
    __asan_poison_memory_region(reinterpret_cast<unsigned char*>(dynamic_memory) + dynamic_bytes,
                                sizeof dynamic_memory - dynamic_bytes);
}

SharedMemory::~SharedMemory() {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(dynamic_memory, sizeof dynamic_memory);
}

void SharedMemory::forget() {
  for (Section& section : sections()) fill(section.begin, section.end);
  fill(dynamic_memory, dynamic_memory + (dynamic_bytes_ + 7) / 8);
}

void* dynamic_shared_memory() { return dynamic_memory; }

}  // namespace cuda_on_cpu
