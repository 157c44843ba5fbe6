// The rank's side of the engine; its thread's side is in engine_thread.cpp.

#include "tera/comm/mpi/engine.h"

#include <fmt/core.h>

#include <cstdio>
#include <utility>

#include "tera/base/signals.h"

namespace tera::mpi {
namespace {

using namespace std::chrono_literals;
using control::Clock;

constexpr auto time_to_abandon = 300ms;
constexpr auto time_to_deliver = 10s;     // to ranks that are alive: a stopped one is found sooner
constexpr auto time_to_be_killed = 3s;    // by the rank that kills the job
constexpr auto time_of_launcher = 500ms;  // to name a process that was killed before the others end, too

}  // namespace

Engine::Engine(const MpiOptions& options, Ops& combiner) : options_(options) {
  thread_ = start_thread_with_signals_blocked([this, &combiner] { run(combiner); });
  std::unique_lock lock(mutex_);
  for_rank_.wait(lock, [&] { return started_; });
  lock.unlock();
  if (start_fault_ == nullptr) return;
  thread_.join();
  std::rethrow_exception(start_fault_);
}

Engine::~Engine() {
  if (thread_.joinable()) end(1, {.kills = true});
}

control::Links Engine::rendezvous() { return control::rendezvous(rendezvous_, std::move(listener_)); }

void Engine::attach(control::Control& control) {
  on_thread([&] { control_ = &control; });
}

Group& Engine::add_group(control::ControlGroup group) {
  return *groups_.emplace_back(std::make_unique<Group>(std::move(group)));
}

void Engine::push(const Request& request) {
  while (queued_.load() == queue_.size()) std::this_thread::yield();
  const std::lock_guard lock(mutex_);
  queue_[(queue_begin_ + queued_.load()) % queue_.size()] = request;
  queued_.fetch_add(1);
  if (thread_sleeps_.load()) for_thread_.notify_one();
}

void Engine::post(Task& task) { push({.task = &task}); }

void Engine::on_thread(FunctionRef<void()> work) {
  ThreadCall thread_call{.work = work};
  push({.thread_call = &thread_call});
  sleep_for(Clock::duration::max(), [&] { return thread_call.done.load(); });
}

// done() is evaluated often, and reads atomics or what mutex_ guards.
template <class Done>
bool Engine::sleep_for(Clock::duration time, const Done& done) {
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  bool is_done = done();
  for (control::WaitTime left(time); !is_done && !left.is_over(); is_done = done()) {
    for_rank_.wait_until(lock, left.nap_end(), done);
    left.end_nap();
  }
  sleepers_.fetch_sub(1);
  return is_done;
}

void Engine::wait(Group& group, std::uint64_t number) {
  while (Task* open = group.first_unfinished(number)) {
    control_->note_wait(group, open->call);
    sleep_for(options_.timeout, [&] {
      open = group.first_unfinished(number);
      return open == nullptr || failed();
    });
    if (open != nullptr && failed()) throw_failure(group, open->call);
    if (open != nullptr) give_up_waiting(group, *open);
    control_->note_return();
  }
  group.collect();
}

void Engine::throw_failure(const Group& group, const Call& call) {
  abandon_transfers();
  control_->throw_failure(group.name, call);
}

// Returns when the task is done after all.
void Engine::give_up_waiting(Group& group, Task& task) {
  std::vector<int> absent;
  on_thread([&] {
    if (!task.done.load()) absent = runner_->absent(task);
  });
  if (absent.empty()) return;
  const std::string who = control_->describe_absent(absent);
  if (failed()) throw_failure(group, task.call);
  give_up(fmt::format("{}: {} on rank {} waited {:g} s: {}", group.name, to_string(task.call), control_->rank(),
                      control::seconds(options_.timeout), who));
}

void Engine::give_up(const std::string& message, std::source_location where) {
  control_->abort(message);
  abandon_transfers();
  throw CommError(message, where);
}

void Engine::abandon_transfers() noexcept {
  if (std::exchange(has_abandoned_, true)) return;
  on_thread([&] {
    runner_->drop_all();
    wire_->cancel_transfers();
  });
  for (const auto deadline = Clock::now() + time_to_abandon; Clock::now() < deadline && !bytes_are_over();)
    std::this_thread::sleep_for(1ms);
}

// Messages that no rank has taken count: once other ranks are in MPI_Finalize they take none. Until then their engines
// poll, so that messages arrive in time unless a rank is dead or stopped.
bool Engine::end_transfers() noexcept {
  for (control::WaitTime left(time_to_deliver); !all_is_over() && !failed() && !left.is_over(); left.end_nap())
    std::this_thread::sleep_for(1ms);
  for (const auto deadline = Clock::now() + time_to_abandon; Clock::now() < deadline && !all_is_over();)
    std::this_thread::sleep_for(1ms);
  return all_is_over();
}

bool Engine::bytes_are_over() noexcept {
  bool over = false;
  on_thread([&] { over = wire_->bytes_in_flight() == 0; });
  return over;
}

bool Engine::all_is_over() noexcept {
  bool over = false;
  on_thread([&] { over = wire_->bytes_in_flight() == 0 && !wire_->sends_in_flight(); });
  return over;
}

// One rank kills the job, and the others wait for that: mpirun does not always survive several MPI_Abort at once.
void Engine::end(int status, const control::JobEnd& job) {
  if (!job.in_order) {
    kill_status_ = status == 0 ? 1 : status;  // this rank is done, but another is gone
    std::fflush(nullptr);                     // nothing is written after a kill
    if (!job.kills || options_.launcher_kills)
      std::this_thread::sleep_for(job.kills ? time_of_launcher : time_to_be_killed);
  }
  on_thread([&] { quit_ = true; });
  thread_.join();
}

}  // namespace tera::mpi
