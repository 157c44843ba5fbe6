#pragma once
// The MPI engine of a rank: a progress thread that owns MPI, and the queue through which the rank gives it tasks.
//
//   rank:     fill in a task, post it ... compute ... wait for it
//   thread:   poll: take posted tasks, answer messages, transfer bytes, reduce; sleep a little when nothing happens
//
// The thread also answers other ranks while its own is stuck, and reports failures.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tera/comm/mpi/group.h"
#include "tera/comm/mpi/make_mpi.h"
#include "tera/comm/mpi/task_runner.h"
#include "tera/comm/mpi/wire.h"

namespace tera::mpi {

class Engine {
 public:
  Engine(const MpiOptions& options, Ops& combiner);
  ~Engine();  // after leave
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return rank_; }  // rank of the world
  int size() const { return size_; }

  Group& add_group(std::string name, std::uint64_t id, std::vector<int> members);
  std::uint64_t new_group_id();  // no other rank has it

  void post(Task& task);
  // Waits until all tasks up to this number are done; throws when they cannot be.
  void wait(Group& group, std::uint64_t number);
  void abort(std::string_view reason) noexcept;
  [[noreturn]] void give_up(const std::string& message, std::source_location where = std::source_location::current());
  [[noreturn]] void throw_failure(const Group& group, const Call& call);
  bool failed() const { return failed_rank_.load() >= 0; }
  // For a rank that ends: no transfer reads or writes its memory any more, or not for long.
  void abandon_transfers() noexcept;

  // This rank's work is over, with a fault of its own or without. Returns when that of all ranks is or, once one has
  // failed, after a moment. The result: the fault that this rank has to report; empty when a lower rank reports the
  // same.
  std::string leave(const std::string& fault, bool work_failed);
  // After leave, and after this rank's report. Ends MPI, or kills the job where a rank did not leave.
  void end(int status);

  // Publishes the rank's call for as long as it lives.
  class CallScope {
   public:
    CallScope(Engine& engine, const Group& group, const Call& call, bool is_new = true);
    ~CallScope();
    CallScope(const CallScope&) = delete;
    CallScope& operator=(const CallScope&) = delete;

   private:
    Engine& engine_;
    int exceptions_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  // A function that runs on the thread while the rank waits.
  struct ThreadCall {
    FunctionRef<void()> work;
    std::atomic<bool> done{false};
  };
  struct Request {
    Task* task = nullptr;
    ThreadCall* thread_call = nullptr;
  };
  struct Other {  // a rank of the world, this one too
    std::optional<std::string> reason, answer;
    int stage = 0;        // how far it has left: stage 1, then 2 (MessageKind::bye)
    bool silent = false;  // it did not answer a ping
    bool stuck = false;   // it has left, but bytes of it are in flight
  };

  // Called on the rank's threads.
  void push(const Request& request);
  void on_thread(FunctionRef<void()> work);
  template <class Done>
  bool sleep_until(Clock::time_point deadline, const Done& done);
  void give_up_waiting(Group& group, Task& task);
  void ping_others(const Group& group);
  bool must_kill();
  bool all_at_stage(int stage) const;
  void announce_leave(int stage, bool failed_or_stuck);

  // Called on the engine's thread.
  void run(Ops& combiner);
  bool poll();
  bool take_requests();
  void run_thread_call(ThreadCall& thread_call);
  void rest(int idle_polls);
  void handle(Message& message);
  void fail_with(int rank, std::string reason);  // reports it to all when it is this rank
  void broadcast_message(MessageKind kind, std::string_view text, int stage = 0, bool failed_or_stuck = false);
  void send_text(int peer, MessageKind kind, std::string_view text);
  void wake_rank();

  const MpiOptions options_;
  int rank_ = 0, size_ = 0;
  bool has_own_core_ = false;  // the thread, while its rank waits
  std::vector<std::unique_ptr<Group>> groups_;
  std::uint64_t groups_made_ = 0;
  bool has_abandoned_ = false;

  std::mutex mutex_;  // guards the queue, the members down to started_, and the decision to sleep
  std::condition_variable for_thread_, for_rank_;
  std::array<Request, 1024> queue_;
  std::size_t queue_begin_ = 0;
  std::atomic<std::size_t> queued_{0};
  std::vector<Other> others_;
  std::string start_fault_;
  bool started_ = false;
  std::atomic<int> sleepers_{0};  // threads of the rank
  std::atomic<bool> thread_sleeps_{false}, quit_{false};
  std::atomic<int> failed_rank_{-1}, kill_status_{0};

  std::mutex activity_mutex_;
  const Group* activity_group_ = nullptr;
  RankActivity activity_;

  std::unique_ptr<Wire> wire_;          // the thread's
  std::unique_ptr<TaskRunner> runner_;  // the thread's
  std::thread thread_;
};

}  // namespace tera::mpi
