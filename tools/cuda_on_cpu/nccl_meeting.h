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

inline constexpr int most_ranks = 64;

// What a rank says when a communicator is split. `step` is the number of the split up to which the rest is true.
struct SplitSlot {
  std::atomic<std::uint64_t> said, has_id;
  int color, key;
  ncclUniqueId id;  // of the part, from its first rank
};

struct MeetingHead {
  std::uint64_t token;  // as in the id
  std::atomic<int> ranks, present;
  std::atomic<int> here[most_ranks];
  SplitSlot splits[2][most_ranks];  // by turns: a slow rank may still read those of the split before
};

// An id, and the file that belongs to it, which stays open until meet() or the end of this process.
ncclUniqueId make_id();

class Meeting {
 public:
  // Opens the file of the id and waits for the other ranks. Refused: it makes no sense, or `gives_up` said so.
  Meeting(const ncclUniqueId& id, int rank, int ranks, const std::function<bool()>& gives_up);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  Pipe& pipe(int from, int to);
  SplitSlot& slot(std::uint64_t split, int rank) { return head().splits[split % 2][rank]; }

 private:
  void open(const ncclUniqueId& id);
  void come(int rank);
  MeetingHead& head() { return *static_cast<MeetingHead*>(memory_); }

  int ranks_;
  std::size_t bytes_;
  void* memory_ = nullptr;
};

// Until ready(); looks again and again, and leaves the core to others in between. Refused when `gives_up` says so.
void wait_until(const std::function<bool()>& ready, const std::function<bool()>& gives_up);

}  // namespace cuda_on_cpu::nccl
