#pragma once
// The bytes of a rank, by what they are for, before anything is allocated; then one allocation, cut up as planned.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tera/pipeline/stage_memory.h"
#include "tera/tensor/arena.h"
#include "tera/tensor/device.h"

namespace tera {

struct MemoryItem {
  std::string name;
  std::size_t bytes = 0;   // of one copy
  std::size_t copies = 1;  // microbatches in flight
  Arena::BytesByTag tags;  // of one copy, at its peak; they add up to bytes
};

class MemoryPlan {
 public:
  void add(std::string name, const Arena& measured);
  // Several arenas of one kind; each gets the room of the largest.
  template <class Arenas>
  void add_pool(std::string name, const Arenas& measured) {
    const Arena* largest = nullptr;
    for (const Arena& arena : measured)
      if (!largest || arena.peak() > largest->peak()) largest = &arena;
    if (!largest) return;
    add(std::move(name), *largest);
    items_.back().copies = measured.size();
  }
  void add_stage(const StageMemory& measured);  // every kind of its arenas as a pool
  void add_bytes(std::string name, std::size_t bytes);
  void add_host_bytes(std::size_t bytes) { host_bytes_ += bytes; }

  std::span<const MemoryItem> items() const { return items_; }
  const MemoryItem& item(std::string_view name) const;    // throws if there is none
  std::size_t total() const;                              // UserError when it does not fit 64 bits
  std::size_t host_bytes() const { return host_bytes_; }  // besides: for copies that the device makes on the host

 private:
  std::vector<MemoryItem> items_;
  std::size_t host_bytes_ = 0;
};

// A plan's memory on a device.
class PlannedMemory {
 public:
  PlannedMemory() = default;
  PlannedMemory(Device& device, MemoryPlan plan);  // UserError when it does not fit

  const MemoryPlan& plan() const { return plan_; }
  Arena arena(std::string_view name, std::size_t copy = 0) const;
  std::span<std::byte> bytes(std::string_view name, std::size_t copy = 0) const;
  StageMemory stage(const StageMemory& measured) const;  // the arenas of add_stage(measured)

 private:
  MemoryPlan plan_;
  std::span<std::byte> slab_;
  bool on_host_ = true;
};

std::string format_bytes(std::size_t bytes);  // "1.50 GiB"

// For whoever has a plan that does not fit.
inline constexpr std::string_view how_to_need_less =
    "a smaller train.micro_batch_size or train.seq_length, or model.recompute_granularity=full, needs less";

}  // namespace tera
