#pragma once
// Runs tasks, on the MPI thread, in phases:
//
// - Announce: one message to each other rank names the call and the number of bytes that follow, or has them inside.
// - Match: the messages of all others are there, and name the same call.
// - Transfer: sends begin at once, receives when all ranks have matched.
// - Reduce: inputs are received into staging memory, a piece of each rank, and added in the order of ranks.
//
// An exchange has no match over all ranks: each of its lanes proceeds by itself.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "tera/comm/comm.h"
#include "tera/comm/mpi/group.h"
#include "tera/comm/mpi/wire.h"

namespace tera::mpi {

// Staging memory for pieces of all other ranks, double-buffered: one is received while the other is added.
struct StagingBuffer {
  std::byte* memory = nullptr;
  bool taken = false;
};

// Bytes of a reduction that are sent at a time in a group of this size: small enough for staging and for the caches.
std::size_t sum_piece(int ranks);
// Bytes of all other calls that are sent at a time: MPI counts with an int.
inline constexpr std::size_t plain_piece = std::size_t{1} << 30;

class TaskRunner {
 public:
  TaskRunner(Wire& wire, Ops& combiner);

  // start and accept may throw CommError: the ranks made different calls.
  void start(Task& task);
  void accept(Message& message);  // takes it
  void piece_moved(const MovedPiece& piece);
  void advance();  // all tasks, as far as they go

  bool idle() const { return active_.empty(); }
  bool take_any_done();  // since the last call of it
  // Ranks of the world that a task waits for.
  std::vector<int> absent(const Task& task) const;
  void drop_all();

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
  void post_piece_receive(Task& task);
  bool piece_has_arrived(Task& task);
  void sum_piece_of(Task& task, std::int64_t piece);
  bool complete(Task& task);
  void finish(Task& task);
  std::byte* staged(const Task& task, std::int64_t piece, int peer) const;

  Wire& wire_;
  Ops& combiner_;
  std::vector<Task*> active_;         // in the order of posting
  std::vector<Message*> unexpected_;  // messages for tasks that are not posted yet
  std::unique_ptr<std::byte[]> staging_memory_;
  std::vector<StagingBuffer> staging_buffers_;
  std::vector<Tensor> sources_;
  bool any_done_ = false;
};

}  // namespace tera::mpi
