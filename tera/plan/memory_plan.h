#pragma once
// The memory plan of a rank: its bytes by purpose before anything is allocated, then one allocation (a slab), divided
// into arenas as planned.

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
  std::size_t bytes = 0;   // size of one copy
  std::size_t copies = 1;  // microbatches in flight
  Arena::BytesByTag tags;  // sizes in one copy, at its peak; they add up to bytes
};

class MemoryPlan {
 public:
  void add(std::string name, const Arena& measured);
  void add_pool(std::string name, std::span<const Arena> measured);  // one kind; each gets the bytes of the largest
  void add_stage(const StageMemory& measured);                       // each kind of its arenas as a pool
  void add_bytes(std::string name, std::size_t bytes);
  void add_saving_bytes(std::size_t bytes) { saving_bytes_ += bytes; }  // the host copy of an asynchronous save

  std::span<const MemoryItem> items() const { return items_; }
  const MemoryItem& item(std::string_view name) const;  // throws if there is none
  std::size_t total() const;                            // UserError when it does not fit 64 bits

  // Host memory: offloaded activations, and the copy of an asynchronous save, which is not bound here.
  std::span<const MemoryItem> host_items() const { return host_items_; }
  const MemoryItem& host_item(std::string_view name) const;
  std::size_t offloaded_bytes() const;
  std::size_t saving_bytes() const { return saving_bytes_; }
  std::size_t host_bytes() const;  // offloaded and saving bytes

 private:
  std::vector<MemoryItem> items_, host_items_;
  std::size_t saving_bytes_ = 0;
};

// A plan's memory on a device.
class PlannedMemory {
 public:
  PlannedMemory() = default;
  // UserError when it does not fit; only then `advice` is called for the text of the error: what would fit.
  using Advice = std::function<std::string(double needed, double available)>;
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
