#pragma once
// The tasks that a rank gives to the MPI thread: a call becomes a task, with a lane for each tensor that is sent to or
// received from another rank. The rank fills them in and posts the task; from then on it is the thread's, until done.

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "tera/comm/control/control.h"
#include "tera/comm/mpi/message.h"
#include "tera/ops/reduce.h"
#include "tera/tensor/tensor.h"

namespace tera::mpi {

struct Lane {
  int peer = 0;  // rank in the group
  bool send = false;
  std::byte* memory = nullptr;  // null for the input of a reduction, which is received into staging memory
  std::size_t bytes = 0;
  std::uint64_t number = 0;  // as in Header
  std::int64_t rows = 0;     // all_to_all
  Tensor tensor;             // exchange

  // Used by the thread.
  Message* message = nullptr;  // the announcement from the sender
  bool open = false;           // the announcement was checked, and bytes may be transferred
  int tag = 0;
  std::size_t started = 0, moved = 0;  // bytes
  std::array<bool, 2> arrived{};       // pieces in staging memory, double-buffered
};

struct Group;
struct StagingBuffer;

struct Task {
  Group* group = nullptr;
  Call call;
  std::uint64_t collective = 0;  // its number among those of the group; 0: an exchange
  std::size_t first_lane = 0, lanes = 0;
  std::size_t piece = 0;  // maximum bytes of one MPI message
  Task* then = nullptr;   // posted together with this one, and begins when this one is done
  Tensor local, sum;      // [n] this rank's input and the result of a reduction; empty: no reduction

  // Used by the thread.
  Task* after = nullptr;
  bool begun = false, met = false;  // met: all ranks have announced the call
  StagingBuffer* staging = nullptr;
  std::int64_t pieces_posted = 0, pieces_summed = 0;

  std::atomic<bool> done{true};
};

// A group of ranks with its ring buffers of tasks and lanes. Its members never change.
struct Group : control::ControlGroup {
  static constexpr std::size_t max_tasks = 64;

  explicit Group(control::ControlGroup group);

  int world_rank(int r) const { return members[static_cast<std::size_t>(r)]; }
  Task& task(std::uint64_t number) { return tasks[number % max_tasks]; }
  Lane& lane(const Task& t, std::size_t i) { return lanes[(t.first_lane + i) % lanes.size()]; }
  // The first task that is not done, of those up to this number; null: all are done.
  Task* first_unfinished(std::uint64_t number);
  // Frees the ring buffers of tasks that are done.
  void collect();
  bool has_capacity(std::size_t wanted_tasks, std::size_t wanted_lanes) const;

  // Used by the rank.
  std::vector<Task> tasks;
  std::vector<Lane> lanes;
  std::uint64_t posted = 0, collected = 0;            // tasks; the number of a task is its ticket
  std::size_t lanes_begin = 0, lanes_used = 0;        // in the ring buffer
  std::uint64_t collectives = 0;                      // posted
  std::vector<std::uint64_t> sent_to, received_from;  // transfers with each rank
};

}  // namespace tera::mpi
