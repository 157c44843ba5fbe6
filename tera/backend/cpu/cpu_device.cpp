#include "tera/backend/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "tera/base/error.h"
#include "tera/tensor/arena.h"

namespace tera::cpu {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t not_known = SIZE_MAX;  // then the allocation itself decides

// The number behind a key in one of the kernel's tables.
std::optional<std::size_t> find_number(const char* file, std::string_view key) {
  std::ifstream table(file);
  for (std::string word; table >> word;) {
    std::size_t number = 0;
    if (word == key && table >> number) return number;
    table.ignore(256, '\n');
  }
  return std::nullopt;
}

std::size_t free_memory() {
  const auto kib = find_number("/proc/meminfo", "MemAvailable:");
  return kib ? *kib * 1024 : not_known;
}

// A container is ended without a word when it passes its limit, however much the machine has.
std::size_t left_in_container() {
  std::size_t limit = 0, used = 0;
  std::ifstream max("/sys/fs/cgroup/memory.max"), current("/sys/fs/cgroup/memory.current");
  if (!(max >> limit) || !(current >> used)) return not_known;  // no limit ("max"), or no container
  used -= std::min(used, find_number("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0));  // cache, given back
  return limit > used ? limit - used : 0;
}

}  // namespace

CpuDevice::~CpuDevice() {
  for (auto slab : slabs_) munmap(slab.data(), slab.size());
}

std::span<std::byte> CpuDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return {};
  // mmap aligns to small pages only; map one huge page more and give back what sticks out at both ends.
  const std::size_t size = align_up(bytes, huge_page);
  void* map = mmap(nullptr, size + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) fail_user("cannot allocate {} bytes of memory", bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(map);
  const std::size_t lead = align_up(address, huge_page) - address;
  auto* begin = static_cast<std::byte*>(map) + lead;
  if (lead > 0) munmap(map, lead);
  if (lead < huge_page) munmap(begin + size, huge_page - lead);
  madvise(begin, size, MADV_HUGEPAGE);  // a wish: small pages work too
  slabs_.emplace_back(begin, size);
  return {begin, bytes};
}

std::size_t CpuDevice::available() const { return std::min(free_memory(), left_in_container()); }

}  // namespace tera::cpu
