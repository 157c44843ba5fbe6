#pragma once
// Plays tasks, on the thread that talks to MPI.
//
// - Announce: one message to each other rank says what is called and how many bytes follow, or has them inside.
// - Meet: the messages of all others are there, and name the same call.
// - Move: bytes go out from the start, and are received when all have met.
// - Sum: what is to be summed comes to staging memory, a piece of each rank, and is added in the order of ranks.
//
// An exchange does not meet: each of its lanes goes its own way.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "tera/backend/mpi/group.h"
#include "tera/backend/mpi/wire.h"
#include "tera/comm/comm.h"

namespace tera::mpi {

// For pieces of all other ranks, two of each: one comes while the other is added.
struct Staging {
  std::byte* memory = nullptr;
  bool taken = false;
};

// Bytes of a sum that travel at a time in a group of this size: small enough for staging and for the caches.
std::size_t sum_piece(int ranks);
// And of everything else: MPI counts with an int.
inline constexpr std::size_t plain_piece = std::size_t{1} << 30;

class TaskRunner {
 public:
  TaskRunner(Wire& wire, Ops& combiner);

  // Both may throw CommError: the ranks do not agree.
  void start(Task& task);
  void take_in(Message& message);  // of kind call
  void piece_moved(const Moved& piece);
  void advance();  // all tasks, as far as they go

  bool idle() const { return active_.empty(); }
  bool take_any_done();  // since it was asked last
  // Ranks of the world that a task waits for.
  std::vector<int> absent(const Task& task) const;
  void forget_all();

 private:
  bool match(Task& task, Message& message);
  bool advance(Task& task);
  void announce(Task& task, Lane& lane);
  void compare_calls(Task& task);
  void check_lane(const Task& task, const Lane& lane) const;
  void open(Task& task, Lane& lane);
  bool open_lanes(Task& task);
  bool move(Task& task, Lane& lane);
  bool sum(Task& task);
  bool take_staging(Task& task);
  void ask_for_piece(Task& task);
  bool piece_has_landed(Task& task);
  void sum_piece_of(Task& task, std::int64_t piece);
  bool complete(Task& task);
  void finish(Task& task);
  std::byte* staged(const Task& task, std::int64_t piece, int peer) const;

  Wire& wire_;
  Ops& combiner_;
  std::vector<Task*> active_;    // in the order of posting
  std::vector<Message*> early_;  // for tasks that are not posted yet
  std::unique_ptr<std::byte[]> staging_memory_;
  std::vector<Staging> stagings_;
  std::vector<Tensor> sources_;
  bool any_done_ = false;
};

}  // namespace tera::mpi
