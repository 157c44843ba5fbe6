#pragma once
// A communicator whose size and rank are known by arithmetic, before any rank has connected. Until join() its calls
// only check their arguments and count bytes: a dry run of a step, for any rank of any world, on one machine. After
// join() they go to the ranks.

#include <array>

#include "tera/comm/comm.h"

namespace tera {

// What a rank sends in a group, counted in the dry run.
struct Traffic {
  std::int64_t calls = 0;
  double bytes = 0;         // sent by this rank, as a ring algorithm or a direct exchange would
  std::size_t largest = 0;  // bytes of the largest tensor of a call
  std::uint64_t hash = 0;   // hash of the collectives in their order: equal on all ranks of a group
};

class PlannedComm final : public Comm {
 public:
  PlannedComm(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {}

  void join(std::unique_ptr<Comm> comm);  // takes a Comm of the same rank and size over
  void join(Comm& comm);                  // the Comm stays the caller's
  bool joined() const { return comm_ != nullptr; }
  const Traffic& traffic() const { return traffic_; }
  void reset_traffic() { traffic_ = {}; }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return name_; }
  void barrier() override;
  std::unique_ptr<Comm> split(int color, int key, std::string name) override;
  void abort(std::string_view reason) noexcept override;

 private:
  Ticket do_all_reduce(const Tensor& inout, Reduce how, Ticket after) override;
  Ticket do_all_gather(const Tensor& shard, const Tensor& full, Ticket after) override;
  Ticket do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after) override;
  Ticket do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                       std::span<const std::int64_t> out_rows, Ticket after) override;
  Ticket do_broadcast(const Tensor& inout, int root, Ticket after) override;
  Ticket do_exchange(std::span<const Transfer> transfers, Ticket after) override;

  enum class Call : std::uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast };
  void count(Call call, const Tensor& tensor, int detail, double bytes);

  std::string name_;
  int rank_, size_;
  std::unique_ptr<Comm> owned_;
  Comm* comm_ = nullptr;
  Traffic traffic_;
};

}  // namespace tera
