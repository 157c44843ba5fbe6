#pragma once
// How threads meet. A collective is a few phases; in each, every rank lays down what it brings (its call, its tensor,
// when that is ready) and goes on when all have come:
//
//   rank 0   lay down ... wait ......|  read the others' memory   lay down ... wait |  next call
//   rank 1      lay down ........... |  read                        lay down        |
//   rank 2          compute .. lay down |  read                  lay down           |
//            phase p: all inputs are there       phase p+1: nobody reads them any more
//
// Two arrivals per rank, used in turn, are enough: a rank writes the one of phase p+2 only after all came to p+1, and
// they do that when they have read those of phase p.
//
// An exchange is no collective: the first of a pair leaves a post, the second finds it and copies.

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

// What a rank brings to a phase.
struct Arrival {
  Call call;
  Ticket ready;                           // its queue has done what the others count on
  Tensor tensor;                          // what the others read
  const std::int64_t* in_rows = nullptr;  // all_to_all: rows of tensor for each rank
  int color = 0, key = 0;                 // split
  ThreadGroup* made = nullptr;            // split: by the first rank of a color
};

// One side of a transfer whose other side has not come yet.
struct Post {
  enum class State : std::uint8_t { free, waiting, copying, done };
  State state = State::free;
  bool send = false;
  int peer = 0;
  int copier = -1;  // whose queue has done
  Tensor tensor;
  Ticket ready;                // on the queue of its rank: the tensor may be read or written
  std::uint64_t order = 0;     // over the whole group
  std::uint64_t exchange = 0;  // of its rank
  Ticket done;                 // of the copy, on the queue of the rank that made it
  Ticket own;                  // of the copies that its own rank made in the same exchange
};

// What a rank is doing or did last, in any group.
struct Activity {
  std::mutex mutex;
  const ThreadGroup* group = nullptr;
  Call call;
  std::uint64_t calls = 0;
  bool inside = false;
};

class ThreadHubState {
 public:
  ThreadHubState(int ranks, const ThreadCommOptions& options);

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
  int spins_, yields_;  // before a rank that waits goes to sleep
  std::mutex mutex_;    // taken before that of a group
  std::vector<std::unique_ptr<ThreadGroup>> groups_;
  std::vector<Activity> activities_;  // by rank of the world
  std::atomic<int> failed_rank_{-1};
  std::array<char, 1024> reason_;  // fixed, because a failing rank may be out of memory
  std::size_t reason_size_ = 0;
};

// Ranks are those of the group, except in messages, which name ranks of the world.
class ThreadGroup {
 public:
  ThreadGroup(ThreadHubState& hub, std::string name, std::vector<int> members);

  const std::string& name() const { return name_; }
  int size() const { return static_cast<int>(members_.size()); }
  int world_rank(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  // Lays down the arrival and waits for all. CommError when somebody stays away or brings another call.
  void meet(int rank, const Arrival& arrival);
  // What a rank brought to the phase in which `reader` met it last; stays until `reader` meets again.
  const Arrival& arrival(int rank, int reader) const;

  // The oldest post of `peer` that the transfer fits, taken for copying; or null, and the transfer is posted.
  Post* take_or_post(int rank, const Transfer& transfer, Ticket ready, std::uint64_t exchange);
  void copied(Post& post, int owner, Ticket done);  // owner: the rank that had posted
  // Tells the posts of an exchange which copies its rank made itself; false when there is no such post.
  bool note_own_copies(int rank, std::uint64_t exchange, Ticket own);
  // Waits until nothing of the rank's exchanges up to this one is open, by the host.
  void finish_exchanges(int rank, std::uint64_t exchange);

  // This rank's queue now waits for what the others brought to the phase.
  void have_read(int rank);
  // A rank goes into a call and comes out of it, in whatever way.
  void enter(int rank) { slot(rank).inside.fetch_add(1); }
  void come_out(int rank);
  // A rank goes away, and its queue and its memory with it: waits until nobody will ask for a ticket of it any more;
  // and where a rank has failed, and calls end halfway, until all others are out of theirs.
  void leave(int rank) noexcept;

  void wake();
  // Ends this call for all ranks: the hub is told, and the caller throws.
  [[noreturn]] void give_up(int rank, const std::string& message,
                            std::source_location where = std::source_location::current());

 private:
  static constexpr std::size_t posts_per_rank = 64;
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> phase{0};  // how many this rank has come to
    std::atomic<std::uint64_t> read{0};   // and in how many it is done with the others' arrivals
    std::atomic<int> inside{0};           // calls that it is in, which may read the others' memory
    std::array<Arrival, 2> arrivals;
    std::array<Post, posts_per_rank> posts;
    std::condition_variable copied;  // one of them, by another rank
  };
  enum class Waited { done, late, aborted };

  Slot& slot(int rank) { return slots_[static_cast<std::size_t>(rank)]; }
  const Slot& slot(int rank) const { return slots_[static_cast<std::size_t>(rank)]; }
  bool all_at(std::uint64_t phase) const;
  template <class Done>
  Waited wait_until(std::condition_variable& change, const Done& done);
  void wait_for_others_to_come_out(int rank);
  Post* waiting_post(int rank, const Transfer& transfer);
  [[noreturn]] void missing(int rank, Waited waited, const std::vector<int>& absent);
  void compare_calls(int rank);

  ThreadHubState& hub_;
  std::string name_;
  std::vector<int> members_;
  std::vector<Slot> slots_;
  std::mutex mutex_;                 // posts, and going to sleep
  std::condition_variable changed_;  // all have met, or one that leaves may be let go
  std::uint64_t orders_ = 0;
  std::atomic<int> leaving_{0};  // ranks that wait in leave()
};

// Says in the hub what a rank is about, for as long as it lives.
class InCall {
 public:
  InCall(ThreadHubState& hub, ThreadGroup& group, int rank, const Call& call);
  ~InCall();
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  ThreadGroup& group_;
  int rank_;
  Activity& activity_;
  int exceptions_;
};

}  // namespace tera
