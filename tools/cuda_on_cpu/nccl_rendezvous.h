#pragma once
// Memory that the ranks of a communicator share. It is a file without a name, which the process that made the id holds
// open until all ranks have it: nothing is left of it when they have ended, however they ended.

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "tools/cuda_on_cpu/nccl_pipe.h"

namespace cuda_on_cpu::nccl {

inline constexpr int max_ranks = 64;

// What a rank publishes when a communicator is split. `published` and `has_id` are the number of the last split for
// which the other members are valid.
struct SplitSlot {
  std::atomic<std::uint64_t> published, has_id;
  int color, key;
  ncclUniqueId id;  // id of the new communicator, from its first rank
};

struct RendezvousHead {
  std::uint64_t token;  // as in the id
  std::atomic<int> ranks, present;
  std::atomic<int> here[max_ranks];
  SplitSlot splits[2][max_ranks];  // double-buffered: a slow rank may still read those of the split before
};

// An id, and the file that belongs to it, which stays open until its Rendezvous is complete or this process ends.
ncclUniqueId make_id();

class Rendezvous {
 public:
  // Opens the file of the id and waits for the other ranks. Refused: the arguments are invalid, or `gives_up` returned
  // true.
  Rendezvous(const ncclUniqueId& id, int rank, int ranks, const std::function<bool()>& gives_up);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  Pipe& pipe(int from, int to);
  SplitSlot& slot(std::uint64_t split, int rank) { return head().splits[split % 2][rank]; }

 private:
  void open(const ncclUniqueId& id);
  void arrive(int rank);
  RendezvousHead& head() { return *static_cast<RendezvousHead*>(memory_); }

  int ranks_;
  std::size_t bytes_;
  void* memory_ = nullptr;
};

// Polls until ready(), and yields the core in between. Refused when `gives_up` returns true.
void wait_until(const std::function<bool()>& ready, const std::function<bool()>& gives_up);

}  // namespace cuda_on_cpu::nccl
