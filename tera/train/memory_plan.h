#pragma once
// The bytes of a rank, by what they are for, before anything is allocated; then one allocation, cut up as planned.

#include <cstddef>
#include <functional>
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
  void add_pool(std::string name, std::span<const Arena> measured);  // of one kind; each gets the room of the largest
  void add_stage(const StageMemory& measured);                       // every kind of its arenas as a pool
  void add_bytes(std::string name, std::size_t bytes);
  void add_saving_bytes(std::size_t bytes) { saving_bytes_ += bytes; }  // of a copy for asynchronous saving

  std::span<const MemoryItem> items() const { return items_; }
  const MemoryItem& item(std::string_view name) const;  // throws if there is none
  std::size_t total() const;                            // UserError when it does not fit 64 bits

  // Besides, on the host: activations that wait there, and the copy for saving, which is not bound here.
  std::span<const MemoryItem> host_items() const { return host_items_; }
  const MemoryItem& host_item(std::string_view name) const;
  std::size_t offloaded_bytes() const;
  std::size_t saving_bytes() const { return saving_bytes_; }
  std::size_t host_bytes() const;  // both

 private:
  std::vector<MemoryItem> items_, host_items_;
  std::size_t saving_bytes_ = 0;
};

// A plan's memory on a device.
class PlannedMemory {
 public:
  PlannedMemory() = default;
  // UserError when it does not fit; advice: what needs less than so much in so much room, asked for only then.
  using Advice = std::function<std::string(double needed, double room)>;
  PlannedMemory(Device& device, MemoryPlan plan, const Advice& advice = {});

  const MemoryPlan& plan() const { return plan_; }
  Arena arena(std::string_view name, std::size_t copy = 0) const;
  std::span<std::byte> bytes(std::string_view name, std::size_t copy = 0) const;
  StageMemory stage(const StageMemory& measured) const;  // the arenas of add_stage(measured)

 private:
  MemoryPlan plan_;
  std::span<std::byte> slab_, host_slab_;
  bool on_host_ = true;
};

std::string format_bytes(std::size_t bytes);  // "1.50 GiB"

}  // namespace tera
