#include "tera/train/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "tera/base/error.h"

namespace tera {
namespace {

constexpr std::string_view beyond_addresses = "needs more memory than can be addressed; give smaller sizes";

}  // namespace

void MemoryPlan::add(std::string name, const Arena& measured) {
  items_.push_back({std::move(name), measured.peak(), 1, measured.at_peak()});
}

void MemoryPlan::add_stage(const StageMemory& measured) {
  measured.visit([&](std::string_view name, std::span<const Arena> arenas) { add_pool(std::string(name), arenas); });
}

void MemoryPlan::add_bytes(std::string name, std::size_t bytes) {
  const std::size_t rounded = align_up(bytes, Arena::alignment);
  require_user(rounded >= bytes, "'{}' {}", name, beyond_addresses);
  items_.push_back({std::move(name), rounded, 1, {}});
}

const MemoryItem& MemoryPlan::item(std::string_view name) const {
  for (const auto& item : items_)
    if (item.name == name) return item;
  fail("the memory plan has no '{}'", name);
}

std::size_t MemoryPlan::total() const {
  std::size_t total = 0;
  for (const auto& item : items_) {
    std::size_t bytes = 0;
    const bool countable =
        !__builtin_mul_overflow(item.bytes, item.copies, &bytes) && !__builtin_add_overflow(total, bytes, &total);
    require_user(countable, "the plan {}", beyond_addresses);
  }
  return total;
}

PlannedMemory::PlannedMemory(Device& device, MemoryPlan plan) : plan_(std::move(plan)) {
  const std::size_t total = plan_.total(), available = device.available();
  const std::size_t copies = device.is_host() ? plan_.host_bytes() : 0;  // elsewhere the host has memory of its own
  require_user(copies == 0 || total > available || copies <= available - total,
               "the plan needs {}, and checkpoint.async_save another {} for a copy of what it writes; the machine has "
               "{} left: checkpoint.async_save=false needs no copy",
               format_bytes(total), format_bytes(copies), format_bytes(available));
  require_user(total <= available,
               "the plan needs {}, {} more than the {} that the {} has left; {} (tera plan shows for what)",
               format_bytes(total), format_bytes(total - std::min(total, available)), format_bytes(available),
               device.is_host() ? "machine" : "GPU", how_to_need_less);
  slab_ = device.allocate(total);
  on_host_ = device.is_host();
}

std::span<std::byte> PlannedMemory::bytes(std::string_view name, std::size_t copy) const {
  std::size_t begin = 0;
  for (const auto& item : plan_.items()) {
    if (item.name == name) {
      require(copy < item.copies, "'{}' was planned {} times", name, item.copies);
      return slab_.subspan(begin + copy * item.bytes, item.bytes);
    }
    begin += item.bytes * item.copies;
  }
  fail("the memory plan has no '{}'", name);
}

Arena PlannedMemory::arena(std::string_view name, std::size_t copy) const {
  return Arena(bytes(name, copy), name, on_host_);
}

StageMemory PlannedMemory::stage(const StageMemory& measured) const {
  return measured.bind([&](std::string_view name, std::size_t copy, const Arena&) { return arena(name, copy); });
}

std::string format_bytes(std::size_t bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

}  // namespace tera
