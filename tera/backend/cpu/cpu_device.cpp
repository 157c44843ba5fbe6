#include "tera/backend/cpu/cpu_device.h"

#include <sys/mman.h>

#include <cstdint>

#include "tera/base/error.h"
#include "tera/base/host_memory.h"
#include "tera/tensor/arena.h"

namespace tera::cpu {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

}  // namespace

CpuDevice::~CpuDevice() {
  for (auto slab : slabs_) munmap(slab.data(), slab.size());
}

std::span<std::byte> CpuDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return {};
  // mmap aligns to small pages only; map one huge page more and unmap the excess at both ends.
  const std::size_t size = align_up(bytes, huge_page);
  void* map = mmap(nullptr, size + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) fail_user("cannot allocate {} bytes of memory", bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(map);
  const std::size_t lead = align_up(address, huge_page) - address;
  auto* begin = static_cast<std::byte*>(map) + lead;
  if (lead > 0) munmap(map, lead);
  if (lead < huge_page) munmap(begin + size, huge_page - lead);
  madvise(begin, size, MADV_HUGEPAGE);  // a hint: small pages work too
  slabs_.emplace_back(begin, size);
  return {begin, bytes};
}

std::size_t CpuDevice::available() const { return available_host_memory(); }

}  // namespace tera::cpu
