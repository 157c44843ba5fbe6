#include "tools/cuda_on_cpu/nccl_communicator.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "tools/cuda_on_cpu/nccl_error.h"

namespace cuda_on_cpu::nccl {

Communicator::Communicator(const ncclUniqueId& id, int rank, int ranks, const std::function<bool()>& gives_up)
    : rank_(rank), ranks_(ranks), rendezvous_(id, rank, ranks, gives_up) {}

std::shared_ptr<Communicator> Communicator::split(int color, int key) {
  const auto gives_up = [this] { return aborted_.load(); };
  const std::uint64_t step = ++splits_;
  SplitSlot& mine = rendezvous_.slot(step, rank_);
  mine.color = color;
  mine.key = key;
  mine.published.store(step, std::memory_order_release);
  std::vector<std::tuple<int, int>> part;  // key, rank
  for (int rank = 0; rank < ranks_; ++rank) {
    const SplitSlot& slot = rendezvous_.slot(step, rank);
    wait_until([&] { return slot.published.load(std::memory_order_acquire) == step; }, gives_up);
    if (slot.color == color) part.emplace_back(slot.key, rank);
  }
  if (color == NCCL_SPLIT_NOCOLOR) return nullptr;
  std::sort(part.begin(), part.end());
  const auto place = std::find(part.begin(), part.end(), std::tuple(key, rank_)) - part.begin();
  SplitSlot& first = rendezvous_.slot(step, std::get<1>(part.front()));
  if (place == 0) {
    first.id = make_id();
    first.has_id.store(step, std::memory_order_release);
  }
  wait_until([&] { return first.has_id.load(std::memory_order_acquire) == step; }, gives_up);
  return std::make_shared<Communicator>(first.id, static_cast<int>(place), static_cast<int>(part.size()), gives_up);
}

bool Communicator::progress(Work& work, std::uint64_t number) {
  constexpr int max_rounds = 16;  // so that other streams progress, too
  const std::lock_guard lock(mutex_);
  if (aborted_) return true;
  if (number != finished_ || error_ != ncclSuccess) return false;
  for (int round = 0; round < max_rounds && work.progress(rendezvous_); ++round) {
  }
  if (!work.fault().empty()) {
    set_last_error(work.fault());
    error_ = ncclInvalidArgument;
    return false;
  }
  if (!work.done()) return false;
  ++finished_;
  return true;
}

void Communicator::abort() {
  aborted_ = true;
  const std::lock_guard lock(mutex_);
}

}  // namespace cuda_on_cpu::nccl
