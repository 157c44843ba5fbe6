#pragma once
// The synchronization of ranks that are threads. A collective is a few phases, each a barrier: every rank publishes its
// arrival (its call, its tensor, the ticket at which that is ready) and goes on when all have arrived:
//
//   rank 0   publish ... wait .......|  read the others' memory   publish .... wait |  next call
//   rank 1      publish ............ |  read                        publish         |
//   rank 2          compute .. publish  |  read                  publish            |
//            phase p: all inputs are there       phase p+1: nobody reads them any more
//
// Arrivals are double-buffered: a rank overwrites that of phase p with that of phase p+2 only after all arrived at p+1,
// which they do when they have read those of phase p.
//
// An exchange is no collective: the first rank of a pair posts its transfer, the second matches it and copies.

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <source_location>
#include <string>
#include <vector>

#include "tera/comm/call.h"
#include "tera/comm/comm.h"
#include "tera/comm/thread_comm.h"

namespace tera {

class ThreadGroup;

// What a rank publishes in a phase.
struct Arrival {
  Call call;
  Ticket ready;                           // on its queue: the tensor may be read or written
  Tensor tensor;                          // what the others read
  const std::int64_t* in_rows = nullptr;  // all_to_all: rows of tensor for each rank
  int color = 0, key = 0;                 // split
  ThreadGroup* made = nullptr;            // split: the new group, made by the first rank of a color
};

// One side of a transfer that waits for the other side.
struct PostedTransfer {
  enum class State : std::uint8_t { free, waiting, copying, done };
  State state = State::free;
  bool send = false;
  int peer = 0;
  int copier = -1;  // the rank whose queue has the ticket done
  Tensor tensor;
  Ticket ready;                // on the queue of its rank: the tensor may be read or written
  std::uint64_t order = 0;     // order of posting, over the group
  std::uint64_t exchange = 0;  // number of the exchange on its rank
  Ticket done;                 // end of the copy, on the queue of the copier
  Ticket local_copies;         // end of the copies that its own rank made in the same exchange
};

// The call that a rank is in, or its last one, in any group.
struct Activity {
  std::mutex mutex;
  const ThreadGroup* group = nullptr;
  Call call;
  std::uint64_t calls = 0;
  bool inside = false;
};

class ThreadCoordinatorState {
 public:
  ThreadCoordinatorState(int ranks, const ThreadCommOptions& options);

  ThreadGroup& world() { return *groups_.front(); }
  ThreadGroup& make_group(std::string name, std::vector<int> members);
  Activity& activity(int rank) { return activities_[static_cast<std::size_t>(rank)]; }
  const ThreadCommOptions& options() const { return options_; }
  int spins() const { return spins_; }
  int yields() const { return yields_; }

  void abort(int rank, std::string_view reason) noexcept;
  int failed_rank() const { return failed_rank_.load(); }                     // -1: none
  std::string_view reason() const { return {reason_.data(), reason_size_}; }  // once a rank has failed

 private:
  ThreadCommOptions options_;
  int spins_, yields_;  // how often a waiting rank spins and yields before it sleeps
  std::mutex mutex_;    // locked before that of a group
  std::vector<std::unique_ptr<ThreadGroup>> groups_;
  std::vector<Activity> activities_;  // by rank of the world
  std::atomic<int> failed_rank_{-1};
  std::array<char, 1024> reason_;  // fixed, because a failing rank may be out of memory
  std::size_t reason_size_ = 0;
};

// Ranks are those of the group, except in messages, which name ranks of the world.
class ThreadGroup {
 public:
  ThreadGroup(ThreadCoordinatorState& coordinator, std::string name, std::vector<int> members);

  const std::string& name() const { return name_; }
  int size() const { return static_cast<int>(members_.size()); }
  int world_rank(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  // The barrier of a phase: publishes the arrival and waits for those of all ranks. CommError when a rank does not
  // arrive within the timeout, or arrives with another call.
  void arrive_and_wait(int rank, const Arrival& arrival);
  // The arrival of a rank in `reader`'s latest phase; valid until `reader` arrives at the next one.
  const Arrival& arrival(int rank, int reader) const;

  // The oldest post of the peer that matches the transfer, now in state copying; null: there was none, and the transfer
  // was posted.
  PostedTransfer* match_or_post(int rank, const Transfer& transfer, Ticket ready, std::uint64_t exchange);
  void copied(PostedTransfer& post, int owner, Ticket done);  // owner: the rank that posted
  // Stores in the posts of an exchange the end of the copies that their own rank made; false when it has no posts.
  bool note_local_copies(int rank, std::uint64_t exchange, Ticket local_copies);
  // The host waits until all transfers of the rank's exchanges up to this one are done.
  void finish_exchanges(int rank, std::uint64_t exchange);

  // This rank's queue now has waits for the arrivals of the phase, so their tickets are not needed any more.
  void finish_reading(int rank);
  // Count the calls that a rank is inside of; exit_call also when it throws.
  void enter_call(int rank) { slot(rank).inside.fetch_add(1); }
  void exit_call(int rank);
  // Before a rank's queue and memory are destroyed: waits until no rank uses a ticket of it any more and, where a rank
  // has failed and calls end halfway, until all others have left theirs.
  void leave(int rank) noexcept;

  void wake();
  // Aborts the world with this message, and throws it.
  [[noreturn]] void give_up(int rank, const std::string& message,
                            std::source_location where = std::source_location::current());

 private:
  static constexpr std::size_t posts_per_rank = 64;
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> phase{0};  // the latest phase that this rank has arrived at
    std::atomic<std::uint64_t> read{0};   // the latest phase whose arrivals it has read
    std::atomic<int> inside{0};           // calls that it is inside of, which may read the others' memory
    std::array<Arrival, 2> arrivals;
    std::array<PostedTransfer, posts_per_rank> posts;
    std::condition_variable copied;  // a post was copied by another rank
  };
  enum class Waited { done, timed_out, aborted };

  Slot& slot(int rank) { return slots_[static_cast<std::size_t>(rank)]; }
  const Slot& slot(int rank) const { return slots_[static_cast<std::size_t>(rank)]; }
  bool all_at(std::uint64_t phase) const;
  template <class Done>
  Waited wait_until(std::condition_variable& change, const Done& done);
  void wait_for_others_to_exit(int rank);
  PostedTransfer* find_posted(int rank, const Transfer& transfer);
  [[noreturn]] void fail_absent(int rank, Waited waited, const std::vector<int>& absent);
  void compare_calls(int rank);

  ThreadCoordinatorState& coordinator_;
  std::string name_;
  std::vector<int> members_;
  std::vector<Slot> slots_;
  std::mutex mutex_;                 // guards posts and the decision to sleep
  std::condition_variable changed_;  // all have arrived at a phase, or a rank that leaves may go
  std::uint64_t orders_ = 0;
  std::atomic<int> leaving_{0};  // ranks inside of leave()
};

// Publishes a rank's call in the coordinator for as long as it lives.
class CallScope {
 public:
  CallScope(ThreadCoordinatorState& coordinator, ThreadGroup& group, int rank, const Call& call);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  ThreadGroup& group_;
  int rank_;
  Activity& activity_;
  int exceptions_;
};

}  // namespace tera
