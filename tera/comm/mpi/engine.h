#pragma once
// The MPI engine of a rank: a progress thread that owns MPI, and the queue through which the rank gives it tasks.
//
//   rank:     fill in a task, post it ... compute ... wait for it
//   thread:   poll: take posted tasks, answer messages, transfer bytes, reduce; sleep a little when nothing happens
//
// It moves bytes. Which ranks are alive, what failed and how the job ends is the control plane's.

#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <thread>
#include <vector>

#include "tera/comm/control/control.h"
#include "tera/comm/control/rendezvous.h"
#include "tera/comm/mpi/group.h"
#include "tera/comm/mpi/make_mpi.h"
#include "tera/comm/mpi/task_runner.h"
#include "tera/comm/mpi/wire.h"

namespace tera::mpi {

class Engine {
 public:
  Engine(const MpiOptions& options, Ops& combiner);  // MPI_Init, and where the ranks' rendezvous is
  ~Engine();                                         // after end()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return rendezvous_.rank; }  // rank of the world
  int size() const { return rendezvous_.size; }
  // The connections of this rank to the control plane, through a port that MPI broadcasts.
  control::Links rendezvous();
  // The control plane, which from then on says who failed; before any task, and until end().
  void attach(control::Control& control);
  control::Control& control() { return *control_; }

  Group& add_group(control::ControlGroup group);
  void post(Task& task);
  // Waits until all tasks up to this number are done; throws when they cannot be.
  void wait(Group& group, std::uint64_t number);
  bool failed() const { return control_ != nullptr && control_->failed(); }
  [[noreturn]] void throw_failure(const Group& group, const Call& call);
  // Reports to all ranks that this one has failed, and throws.
  [[noreturn]] void give_up(const std::string& message, std::source_location where = std::source_location::current());
  // For a rank that ends: no transfer reads or writes its memory any more, or not for long.
  void abandon_transfers() noexcept;
  // For a rank that has ended: whether MPI_Finalize has nothing to wait for on this rank. Waits a little until it has.
  bool end_transfers() noexcept;

  // MPI_Finalize, which needs all ranks and waits for bytes in flight. Where it would not return the job is killed.
  void end(int status, const control::JobEnd& job);

 private:
  // A function that runs on the thread while the rank waits.
  struct ThreadCall {
    FunctionRef<void()> work;
    std::atomic<bool> done{false};
  };
  struct Request {
    Task* task = nullptr;
    ThreadCall* thread_call = nullptr;
  };

  // Called on the rank's threads.
  void push(const Request& request);
  void on_thread(FunctionRef<void()> work);
  template <class Done>
  bool sleep_for(control::Clock::duration time, const Done& done);
  void give_up_waiting(Group& group, Task& task);
  bool bytes_are_over() noexcept;
  bool all_is_over() noexcept;

  // Called on the engine's thread.
  void run(Ops& combiner);
  void start(Ops& combiner);
  void find_rendezvous();
  bool poll();
  bool take_requests();
  void run_thread_call(ThreadCall& thread_call);
  void rest(int idle_polls);
  void wake_rank();

  const MpiOptions options_;
  control::Control* control_ = nullptr;  // set by the thread while the rank waits
  control::RendezvousOptions rendezvous_;
  std::optional<control::Listener> listener_;  // rank 0
  bool has_own_core_ = false;                  // the thread, while its rank waits
  std::vector<std::unique_ptr<Group>> groups_;
  bool has_abandoned_ = false;

  std::mutex mutex_;  // guards the queue, start_fault_, started_, and the decision to sleep
  std::condition_variable for_thread_, for_rank_;
  std::array<Request, 1024> queue_;
  std::size_t queue_begin_ = 0;
  std::atomic<std::size_t> queued_{0};
  std::exception_ptr start_fault_;
  bool started_ = false;
  std::atomic<int> sleepers_{0};  // threads of the rank
  std::atomic<bool> thread_sleeps_{false}, quit_{false};
  int kill_status_ = 0;  // 0: MPI ends in order

  bool saw_failure_ = false;            // the thread's
  std::unique_ptr<Wire> wire_;          // the thread's
  std::unique_ptr<TaskRunner> runner_;  // the thread's
  std::thread thread_;
};

}  // namespace tera::mpi
