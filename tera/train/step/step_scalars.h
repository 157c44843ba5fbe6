#pragma once
// The numbers of a step: named slots on the device, combined over ranks by one collective for each way to combine, and
// read by one asynchronous copy of each. Whoever computes a number declares it and writes its slot; the log, and the
// ranks that did not compute it, find it by its name.
//
//   at set-up                 id = add("loss_sum", sum)
//   in a step                 slot(id) <- ops
//   once, at its end          combine(), begin_read()
//   when the ticket is done   reading().number("loss_sum")

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tera/comm/comm.h"
#include "tera/tensor/arena.h"
#include "tera/tensor/device.h"

namespace tera {

// How the values of ranks become the one that is read.
enum class Combine : std::uint8_t {
  sum,       // f64: all ranks' added, in the order of ranks
  max,       // f64: the largest; NaN where a rank has one, but over NCCL, which may lose it
  per_rank,  // i32: one value of each rank
  same,      // any dtype: equal on all ranks already, in a tensor of its owner
};
constexpr std::size_t combined_kinds = 3;  // those that the board combines: all but `same`

struct ScalarSpec {
  std::string name;
  Combine combine = Combine::sum;
  std::int64_t count = 1;
  bool in_evaluation = false;  // evaluations combine and read it, too
  bool logged = false;         // goes to the log under its name as it is read, where count is 1
  std::string console = {};    // how the console shows it, as "spread {:.3f}"; empty: not at all
};

// The numbers of one step or evaluation on the host. Valid until the next but one is read.
class StepReading {
 public:
  StepReading() = default;

  bool has(std::string_view name) const { return find(name) != nullptr; }
  double number(std::string_view name) const { return number_at(name, 0); }  // any dtype
  double number_at(std::string_view name, std::size_t index) const;
  std::size_t count(std::string_view name) const;  // per_rank: as many as ranks; 0: there is no such number
  // All values as they are on the device, but those of per_rank. Empty: there is no such number.
  template <class T>
  std::span<const T> values(std::string_view name) const {
    const std::span<const std::byte> bytes = bytes_of(name, sizeof(T));
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

 private:
  friend class StepScalars;
  struct Value {
    ScalarSpec spec;
    DType dtype;
    std::size_t offset = 0, count = 0, stride = 1;  // on the host: begin in bytes, then in elements
  };
  const Value* find(std::string_view name) const;
  std::span<const std::byte> bytes_of(std::string_view name, std::size_t element_bytes) const;

  const std::deque<Value>* layout_ = nullptr;
  std::span<const std::byte> host_;
  bool of_evaluation_ = false;  // has the numbers of evaluations alone
};

class StepScalars {
 public:
  enum class When : std::uint8_t { step, evaluation };

  // At set-up, before bind(): declares a number. Returns its id.
  std::size_t add(ScalarSpec spec);
  // The tensor of a number whose ranks are the same, when it is bound.
  void attach(std::size_t id, const Tensor& tensor);

  void bind(Arena& arena, int ranks);
  // Pinned memory for as many readings as may be in flight: two steps' and an evaluation's.
  void allocate_host(Device& device);
  void clear(Ops& ops) const;  // once, before the first step

  // The slot of a number on this rank, f64 or i32 [count].
  Tensor slot(std::size_t id) const;
  void set(Ops& ops, std::size_t id, std::span<const double> values) const;

  // Combines the ranks' values, in their slots.
  void combine(Ops& ops, Comm& world, When when) const;
  // Enqueues the copy to the host; reading() has it when this ticket is finished.
  Ticket begin_read(Ops& ops, When when, std::size_t reading) const;
  StepReading reading(std::size_t reading) const;

  static constexpr std::size_t step_readings = 2, evaluation_reading = step_readings;

  // All declared numbers, in order.
  template <class Visit>
  void visit(const Visit& visit) const {
    for (const auto& value : values_) visit(value.spec);
  }

 private:
  struct Block {  // numbers that are combined by one collective; those of evaluations are first
    std::int64_t count = 0, in_evaluation = 0;
    Tensor slots, gathered;  // gathered: per_rank, of all ranks
    std::size_t offset = 0;  // on the host
  };
  const Block& block(Combine combine) const { return blocks_[static_cast<std::size_t>(combine)]; }
  void lay_out();
  void lay_out_host();
  static const Tensor& read_from(const Block& block) { return block.gathered ? block.gathered : block.slots; }
  std::span<std::byte> host(std::size_t reading) const { return host_.subspan(reading * host_bytes_, host_bytes_); }

  std::deque<StepReading::Value> values_;  // a deque, as readings look into it
  std::vector<std::int64_t> first_;        // by id: its place in the block
  std::vector<Tensor> tensors_;            // by id: what is attached
  std::array<Block, combined_kinds> blocks_;
  std::span<std::byte> host_;
  std::size_t host_bytes_ = 0;  // size of one reading
};

}  // namespace tera
