#pragma once
// One rank as a process: the thread that owns MPI, and how the rank hands it work.
//
//   rank:     fill in a task, post it ... compute ... wait for it
//   thread:   poll: take posted tasks, answer messages, move bytes, add; sleep a little when nothing happens
//
// The thread also answers other ranks while its own is stuck, and carries the news when one fails.

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

#include "tera/backend/mpi/group.h"
#include "tera/backend/mpi/make_mpi.h"
#include "tera/backend/mpi/task_runner.h"
#include "tera/backend/mpi/wire.h"

namespace tera::mpi {

class Engine {
 public:
  Engine(const MpiOptions& options, Ops& combiner);
  ~Engine();  // after leave
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return rank_; }  // of the world
  int size() const { return size_; }

  Group& add_group(std::string name, std::uint64_t id, std::vector<int> members);
  std::uint64_t new_group_id();  // no other rank has it

  void post(Task& task);
  // Until all tasks up to this number are done; throws when they cannot be.
  void wait(Group& group, std::uint64_t number);
  void abort(std::string_view reason) noexcept;
  [[noreturn]] void give_up(const std::string& message, std::source_location where = std::source_location::current());
  [[noreturn]] void throw_failure(const Group& group, const Call& call);
  bool failed() const { return failed_rank_.load() >= 0; }
  // For a rank that ends: nobody moves bytes of its memory any more, or not for long.
  void let_go_of_memory() noexcept;

  // This rank's work is over, with a fault of its own or without. Returns when all ranks' is or, once one has failed,
  // after a moment: what this rank has to tell, which is nothing when a lower rank tells the same.
  std::string leave(const std::string& fault, bool work_failed);
  // After leave: this rank has told what it had to tell. Ends MPI, or the whole job where a rank did not leave.
  void end(int status);

  // Says what the rank is about, for as long as it lives.
  class InCall {
   public:
    InCall(Engine& engine, const Group& group, const Call& call, bool is_new = true);
    ~InCall();
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;

   private:
    Engine& engine_;
    int exceptions_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  // Something rare that the thread does for the rank, which waits.
  struct Errand {
    FunctionRef<void()> work;
    std::atomic<bool> done{false};
  };
  struct Request {
    Task* task = nullptr;
    Errand* errand = nullptr;
  };
  struct Other {  // a rank of the world, this one too
    std::optional<std::string> reason, answer;
    int stage = 0;        // of leaving
    bool silent = false;  // it was asked, and did not answer
    bool stuck = false;   // it has left, but bytes of it are under way
  };

  // The rank's side.
  void push(const Request& request);
  void on_thread(FunctionRef<void()> work);
  template <class Done>
  bool sleep_until(Clock::time_point deadline, const Done& done);
  void give_up_waiting(Group& group, Task& task);
  void ask(const Group& group);
  bool must_kill();
  bool all_at_stage(int stage) const;
  void say_bye(int stage, bool failed_or_stuck);

  // The thread's.
  void run(Ops& combiner);
  bool poll();
  bool take_requests();
  void run_errand(Errand& errand);
  void rest(int idle_polls);
  void handle(Message& message);
  void fail_with(int rank, std::string reason);  // and tells the others if it is this one
  void tell_all(MessageKind kind, std::string_view text, int stage = 0, bool failed_or_stuck = false);
  void send_text(int peer, MessageKind kind, std::string_view text);
  void wake_rank();

  const MpiOptions options_;
  int rank_ = 0, size_ = 0;
  bool has_own_core_ = false;  // while its rank waits
  std::vector<std::unique_ptr<Group>> groups_;
  std::uint64_t groups_made_ = 0;
  bool has_let_go_ = false;

  std::mutex mutex_;  // the queue, the news below it, and going to sleep
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

  std::mutex doing_mutex_;
  const Group* doing_group_ = nullptr;
  Doing doing_;

  std::unique_ptr<Wire> wire_;          // the thread's
  std::unique_ptr<TaskRunner> runner_;  // the thread's
  std::thread thread_;
};

}  // namespace tera::mpi
