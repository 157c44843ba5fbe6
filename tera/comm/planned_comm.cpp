#include "tera/comm/planned_comm.h"

#include <algorithm>

namespace tera {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  constexpr std::uint64_t prime = 0x100000001b3;  // FNV-1a, over the bytes of value
  for (int i = 0; i < 8; ++i) hash = (hash ^ (value >> (8 * i) & 0xff)) * prime;
  return hash;
}

}  // namespace

void PlannedComm::join(std::unique_ptr<Comm> comm) {
  owned_ = std::move(comm);
  join(*owned_);
}

void PlannedComm::join(Comm& comm) {
  require(comm.rank() == rank_ && comm.size() == size_, "{}: planned as rank {} of {}, joined as rank {} of {}", name_,
          rank_, size_, comm.rank(), comm.size());
  comm_ = &comm;
}

void PlannedComm::count(Call call, const Tensor& tensor, int detail, double bytes) {
  ++traffic_.calls;
  traffic_.bytes += bytes;
  traffic_.largest = std::max(traffic_.largest, tensor.bytes());
  const auto kind = static_cast<std::uint64_t>(call) << 32 | static_cast<std::uint64_t>(tensor.dtype) << 16;
  traffic_.hash = mix(mix(traffic_.hash, kind | static_cast<std::uint64_t>(detail)), tensor.bytes());
}

void PlannedComm::barrier() {
  if (comm_) comm_->barrier();
}

std::unique_ptr<Comm> PlannedComm::split(int color, int key, std::string name) {
  require(comm_ != nullptr, "{}: split before the ranks have met", name_);
  return comm_->split(color, key, std::move(name));
}

void PlannedComm::abort(std::string_view reason) noexcept {
  if (comm_) comm_->abort(reason);
}

Ticket PlannedComm::do_all_reduce(const Tensor& inout, Reduce how, Ticket after) {
  if (comm_) return comm_->all_reduce(inout, how, after);
  count(Call::all_reduce, inout, static_cast<int>(how), 2.0 * (size_ - 1) / size_ * static_cast<double>(inout.bytes()));
  return after;
}

Ticket PlannedComm::do_all_gather(const Tensor& shard, const Tensor& full, Ticket after) {
  if (comm_) return comm_->all_gather(shard, full, after);
  count(Call::all_gather, full, 0, static_cast<double>(size_ - 1) * static_cast<double>(shard.bytes()));
  return after;
}

Ticket PlannedComm::do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after) {
  if (comm_) return comm_->reduce_scatter(full, shard, how, after);
  count(Call::reduce_scatter, full, static_cast<int>(how),
        static_cast<double>(size_ - 1) * static_cast<double>(shard.bytes()));
  return after;
}

Ticket PlannedComm::do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                                  std::span<const std::int64_t> out_rows, Ticket after) {
  if (comm_) return comm_->all_to_all(in, out, in_rows, out_rows, after);
  count(Call::all_to_all, in, 0, static_cast<double>(size_ - 1) / size_ * static_cast<double>(in.bytes()));
  return after;
}

Ticket PlannedComm::do_broadcast(const Tensor& inout, int root, Ticket after) {
  if (comm_) return comm_->broadcast(inout, root, after);
  count(Call::broadcast, inout, root, root == rank_ ? static_cast<double>(inout.bytes()) : 0);
  return after;
}

// Exchanges are counted but not hashed, since ranks post different ones.
Ticket PlannedComm::do_exchange(std::span<const Transfer> transfers, Ticket after) {
  if (comm_) return comm_->exchange(transfers, after);
  for (const Transfer& transfer : transfers) {
    traffic_.calls += transfer.send ? 1 : 0;
    traffic_.bytes += transfer.send ? static_cast<double>(transfer.tensor.bytes()) : 0;
    traffic_.largest = std::max(traffic_.largest, transfer.tensor.bytes());
  }
  return after;
}

}  // namespace tera
