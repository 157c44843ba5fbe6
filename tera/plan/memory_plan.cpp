#include "tera/plan/memory_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "tera/base/error.h"

namespace tera {
namespace {

constexpr std::string_view beyond_addresses = "needs more memory than can be addressed; give smaller sizes";

std::optional<MemoryItem> pool_of(std::string name, std::span<const Arena> measured) {
  const Arena* largest = nullptr;
  for (const Arena& arena : measured)
    if (!largest || arena.peak() > largest->peak()) largest = &arena;
  if (!largest) return std::nullopt;
  return MemoryItem{std::move(name), largest->peak(), measured.size(), largest->at_peak()};
}

const MemoryItem& find(std::span<const MemoryItem> items, std::string_view name) {
  for (const auto& item : items)
    if (item.name == name) return item;
  fail("the memory plan has no '{}'", name);
}

std::size_t add_up(std::span<const MemoryItem> items) {
  std::size_t total = 0;
  for (const auto& item : items) {
    std::size_t bytes = 0;
    const bool countable =
        !__builtin_mul_overflow(item.bytes, item.copies, &bytes) && !__builtin_add_overflow(total, bytes, &total);
    require_user(countable, "the plan {}", beyond_addresses);
  }
  return total;
}

// The bytes of one copy of an item in a slab that holds all items, one after the other.
std::span<std::byte> cut(std::span<std::byte> slab, std::span<const MemoryItem> items, std::string_view name,
                         std::size_t copy) {
  std::size_t begin = 0;
  for (const auto& item : items) {
    if (item.name == name) {
      require(copy < item.copies, "'{}' was planned {} times", name, item.copies);
      return slab.subspan(begin + copy * item.bytes, item.bytes);
    }
    begin += item.bytes * item.copies;
  }
  fail("the memory plan has no '{}'", name);
}

// On the CPU the host's memory is the device's.
void check_host(const Device& device, const MemoryPlan& plan) {
  const std::size_t total = device.is_host() ? plan.total() : 0, available = device.host_available();
  const std::size_t left = available - std::min(total, available), offloaded = plan.offloaded_bytes();
  if (total > available) return;  // PlannedMemory reports this
  require_user(offloaded <= left,
               "the plan needs {} of the host for model.offload_modules, {} more than the {} that it has left; fewer "
               "modules, or a smaller train.micro_batch_size or train.seq_length, need less (tera plan shows for what)",
               format_bytes(offloaded), format_bytes(offloaded - std::min(offloaded, left)), format_bytes(left));
  const std::size_t copied = plan.saving_bytes();
  if (copied <= left - offloaded) return;
  const std::string_view remedy = "checkpoint.async_save=false needs no copy";
  if (device.is_host())
    fail_user(
        "the plan needs {}, and checkpoint.async_save another {} for a copy of what it writes; the machine has {} "
        "left: {}",
        format_bytes(total + offloaded), format_bytes(copied), format_bytes(available), remedy);
  fail_user("checkpoint.async_save needs {} of the host for a copy of what it writes{}, and the host has {} left: {}",
            format_bytes(copied),
            offloaded > 0 ? fmt::format(", beside {} for model.offload_modules", format_bytes(offloaded)) : "",
            format_bytes(available), remedy);
}

}  // namespace

void MemoryPlan::add(std::string name, const Arena& measured) {
  items_.push_back({std::move(name), measured.peak(), 1, measured.at_peak()});
}

void MemoryPlan::add_pool(std::string name, std::span<const Arena> measured) {
  if (auto pool = pool_of(std::move(name), measured)) items_.push_back(std::move(*pool));
}

void MemoryPlan::add_stage(const StageMemory& measured) {
  measured.visit([&](std::string_view name, std::span<const Arena> arenas) { add_pool(std::string(name), arenas); });
  measured.visit_host([&](std::string_view name, std::span<const Arena> arenas) {
    if (auto pool = pool_of(std::string(name), arenas)) host_items_.push_back(std::move(*pool));
  });
}

void MemoryPlan::add_bytes(std::string name, std::size_t bytes) {
  const std::size_t rounded = align_up(bytes, Arena::alignment);
  require_user(rounded >= bytes, "'{}' {}", name, beyond_addresses);
  items_.push_back({std::move(name), rounded, 1, {}});
}

const MemoryItem& MemoryPlan::item(std::string_view name) const { return find(items_, name); }
const MemoryItem& MemoryPlan::host_item(std::string_view name) const { return find(host_items_, name); }

std::size_t MemoryPlan::total() const { return add_up(items_); }
std::size_t MemoryPlan::offloaded_bytes() const { return add_up(host_items_); }

std::size_t MemoryPlan::host_bytes() const {
  std::size_t bytes = 0;
  require_user(!__builtin_add_overflow(offloaded_bytes(), saving_bytes_, &bytes), "the plan {}", beyond_addresses);
  return bytes;
}

PlannedMemory::PlannedMemory(Device& device, MemoryPlan plan, const Advice& advice) : plan_(std::move(plan)) {
  const std::size_t total = plan_.total(), available = device.available();
  check_host(device, plan_);
  if (total > available)
    fail_user("the plan needs {}, {} more than the {} that the {} has left{}", format_bytes(total),
              format_bytes(total - available), format_bytes(available), device.is_host() ? "machine" : "GPU",
              advice ? fmt::format("; {} (tera plan shows for what)",
                                   advice(static_cast<double>(total), static_cast<double>(available)))
                     : "");
  slab_ = device.allocate(total);
  host_slab_ = device.allocate_host(plan_.offloaded_bytes());
  on_host_ = device.is_host();
}

std::span<std::byte> PlannedMemory::bytes(std::string_view name, std::size_t copy) const {
  return cut(slab_, plan_.items(), name, copy);
}

Arena PlannedMemory::arena(std::string_view name, std::size_t copy) const {
  return Arena(bytes(name, copy), name, on_host_);
}

StageMemory PlannedMemory::stage(const StageMemory& measured) const {
  const auto on_device = [&](std::string_view name, std::size_t copy, const Arena&) { return arena(name, copy); };
  const auto on_host = [&](std::string_view name, std::size_t copy, const Arena&) {
    return Arena(cut(host_slab_, plan_.host_items(), name, copy), name, on_host_);
  };
  return measured.bind(on_device, on_host);
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
