#pragma once
// What a rank asks for and the thread of MPI does: a call becomes a task, with a lane for each tensor that goes to or
// comes from a rank. The rank fills them in and posts the task; from then on it is the thread's, until done.

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "tera/backend/mpi/message.h"
#include "tera/ops/combine.h"
#include "tera/tensor/tensor.h"

namespace tera::mpi {

struct Lane {
  int peer = 0;  // rank in the group
  bool send = false;
  std::byte* memory = nullptr;  // none for what is to be summed: it comes to staging memory
  std::size_t bytes = 0;
  std::uint64_t number = 0;  // as in Header
  std::int64_t rows = 0;     // all_to_all
  Tensor tensor;             // exchange

  // The thread's.
  Message* message = nullptr;  // that announced what comes
  bool open = false;           // it has been looked at, and bytes may come
  int tag = 0;
  std::size_t started = 0, moved = 0;  // bytes
  std::array<bool, 2> landed{};        // pieces in staging memory
};

struct Group;
struct Staging;

struct Task {
  Group* group = nullptr;
  Call call;
  std::uint64_t collective = 0;  // its number among those of the group; 0: an exchange
  std::size_t first_lane = 0, lanes = 0;
  std::size_t piece = 0;  // bytes that travel at a time
  Task* then = nullptr;   // posted together with this one, and begins when it is done
  Tensor own, sum;        // [n] what this rank adds, and where the sum goes; empty: no reduction

  // The thread's.
  Task* after = nullptr;
  bool begun = false, met = false;  // met: all ranks have announced the call
  Staging* staging = nullptr;
  std::int64_t pieces_asked = 0, pieces_summed = 0;

  std::atomic<bool> done{true};
};

// Memory of the rank's side is its own; members never change.
struct Group {
  static constexpr std::size_t most_tasks = 64;

  Group(std::string group_name, std::uint64_t group_id, std::vector<int> group_members, int own_rank);

  int size() const { return static_cast<int>(members.size()); }
  int world_rank(int r) const { return members[static_cast<std::size_t>(r)]; }
  Task& task(std::uint64_t number) { return tasks[number % most_tasks]; }
  Lane& lane(const Task& t, std::size_t i) { return lanes[(t.first_lane + i) % lanes.size()]; }
  // Of those up to this number, the first that is not done; null: all are.
  Task* first_open(std::uint64_t number);
  // Gives back the memory of tasks that are done.
  void collect();
  bool has_room(std::size_t wanted_tasks, std::size_t wanted_lanes) const;

  const std::string name;
  const std::uint64_t id;          // the same on all members, and no other group's
  const std::vector<int> members;  // ranks of the world
  const int rank;

  // The rank's.
  std::vector<Task> tasks;
  std::vector<Lane> lanes;
  std::uint64_t posted = 0, collected = 0;            // tasks; the number of a task is its ticket
  std::size_t lanes_begin = 0, lanes_used = 0;        // in the ring
  std::uint64_t collectives = 0;                      // posted
  std::vector<std::uint64_t> sent_to, received_from;  // transfers with each rank
};

}  // namespace tera::mpi
