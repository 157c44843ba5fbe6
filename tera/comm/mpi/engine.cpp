// The rank's side of the engine; its thread's side is in engine_thread.cpp.

#include "tera/comm/mpi/engine.h"

#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "tera/base/signals.h"

namespace tera::mpi {
namespace {

using namespace std::chrono_literals;

constexpr auto time_to_answer = 1s;       // for ranks that are asked what they do
constexpr auto time_to_leave = 1s;        // for ranks after one has failed
constexpr auto time_to_report = 500ms;    // for other ranks that failed, too
constexpr auto time_to_be_reported = 1s;  // where others have something to report
constexpr auto time_to_be_killed = 3s;    // by another rank
constexpr auto time_to_abandon = 300ms;

}  // namespace

Engine::Engine(const MpiOptions& options, Ops& combiner) : options_(options) {
  thread_ = start_thread_with_signals_blocked([this, &combiner] { run(combiner); });
  std::unique_lock lock(mutex_);
  for_rank_.wait(lock, [&] { return started_; });
  lock.unlock();
  if (start_fault_.empty()) return;
  thread_.join();
  throw Error(start_fault_);
}

Engine::~Engine() {
  if (thread_.joinable()) end(1);
}

Group& Engine::add_group(std::string name, std::uint64_t id, std::vector<int> members) {
  int local = 0;
  while (members[static_cast<std::size_t>(local)] != rank_) ++local;
  return *groups_.emplace_back(std::make_unique<Group>(std::move(name), id, std::move(members), local));
}

std::uint64_t Engine::new_group_id() { return static_cast<std::uint64_t>(rank_) << 32 | ++groups_made_; }

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
  sleep_until(Clock::time_point::max(), [&] { return thread_call.done.load(); });
}

// done() is evaluated often, and reads atomics or what mutex_ guards.
template <class Done>
bool Engine::sleep_until(Clock::time_point deadline, const Done& done) {
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  bool is_done = done();
  for (bool in_time = true; in_time && !is_done; is_done = done()) {
    const auto soon = std::min(deadline, Clock::now() + 1h);  // a far deadline overflows some clocks
    for_rank_.wait_until(lock, soon, done);
    in_time = Clock::now() < deadline;
  }
  sleepers_.fetch_sub(1);
  return is_done;
}

// Shortly before the timeout the other ranks are asked what they do, so that the message at the timeout can say it.
void Engine::wait(Group& group, std::uint64_t number) {
  while (Task* open = group.first_unfinished(number)) {
    const CallScope scope(*this, group, open->call, false);
    const auto ended = [&] {
      open = group.first_unfinished(number);
      return open == nullptr || failed();
    };
    const auto deadline = Clock::now() + options_.timeout;
    if (!sleep_until(deadline - std::min<Clock::duration>(time_to_answer, options_.timeout / 2), ended)) {
      ping_others(group);
      sleep_until(deadline, ended);
    }
    if (open != nullptr && failed()) throw_failure(group, open->call);
    if (open != nullptr) give_up_waiting(group, *open);
  }
  group.collect();
}

void Engine::throw_failure(const Group& group, const Call& call) {
  abandon_transfers();
  const int who = failed_rank_.load();
  const std::string reason = [&] {
    const std::lock_guard lock(mutex_);
    return others_[static_cast<std::size_t>(who)].reason.value_or("for a reason that it did not tell");
  }();
  if (who == rank_) throw CommError(reason);  // the reason names its place
  throw CommAborted(fmt::format("{}: {} on rank {} ended because rank {} failed: {}", group.name, to_string(call),
                                rank_, who, reason));
}

void Engine::ping_others(const Group& group) {
  on_thread([&] {
    for (int rank : group.members) {
      others_[static_cast<std::size_t>(rank)].answer.reset();
      if (rank != rank_) send_text(rank, MessageKind::ping, "");
    }
  });
}

// Returns when the task is done after all.
void Engine::give_up_waiting(Group& group, Task& task) {
  std::vector<int> absent;
  std::vector<std::string> activities;
  on_thread([&] {
    if (!task.done.load()) absent = runner_->absent(task);
    for (int rank : absent) {
      Other& other = others_[static_cast<std::size_t>(rank)];
      other.silent = !other.answer.has_value();
      activities.push_back(other.answer.value_or(fmt::format("rank {} does not answer: it is stopped, or gone", rank)));
    }
  });
  if (absent.empty()) return;
  const double seconds = std::chrono::duration<double>(options_.timeout).count();
  give_up(fmt::format("{}: {} on rank {} waited {:g} s: {}", group.name, to_string(task.call), rank_, seconds,
                      describe_absent(absent, activities)));
}

void Engine::give_up(const std::string& message, std::source_location where) {
  abort(message);
  abandon_transfers();
  throw CommError(message, where);
}

void Engine::abort(std::string_view reason) noexcept {
  on_thread([&] { fail_with(rank_, std::string(reason)); });
}

void Engine::abandon_transfers() noexcept {
  if (std::exchange(has_abandoned_, true)) return;
  std::size_t in_flight = 0;
  on_thread([&] {
    runner_->drop_all();
    wire_->cancel_transfers();
  });
  for (const auto deadline = Clock::now() + time_to_abandon; Clock::now() < deadline;) {
    on_thread([&] { in_flight = wire_->bytes_in_flight(); });
    if (in_flight == 0) return;
    std::this_thread::sleep_for(1ms);
  }
}

bool Engine::all_at_stage(int stage) const {
  return std::all_of(others_.begin(), others_.end(), [&](const Other& o) { return o.stage >= stage || o.silent; });
}

void Engine::announce_leave(int stage, bool failed_or_stuck) {
  on_thread([&] {
    Other& local = others_[static_cast<std::size_t>(rank_)];
    local.stage = stage;
    local.stuck = stage == 2 && failed_or_stuck;
    broadcast_message(MessageKind::bye, "", stage, failed_or_stuck);
  });
}

std::string Engine::leave(const std::string& fault, bool work_failed) {
  if (!fault.empty()) abort(fault);
  announce_leave(1, work_failed);
  sleep_until(Clock::time_point::max(), [&] { return failed() || all_at_stage(1); });
  if (!failed()) return {};
  sleep_until(Clock::now() + time_to_leave, [&] { return all_at_stage(1); });
  const std::lock_guard lock(mutex_);
  const auto mine = others_.begin() + rank_;
  const auto reported_there = [&](const Other& lower) { return lower.reason == mine->reason; };
  if (!mine->reason || std::any_of(others_.begin(), mine, reported_there)) return {};
  return fault.empty() ? *mine->reason : fault;
}

void Engine::end(int status) {
  if (failed()) {
    std::fflush(nullptr);  // nothing is written after a kill
    bool stuck = false;
    on_thread([&] { stuck = wire_->bytes_in_flight() > 0; });
    announce_leave(2, stuck);
    const bool has_reported = others_[static_cast<std::size_t>(rank_)].reason.has_value();
    sleep_until(Clock::now() + (has_reported ? time_to_report : time_to_be_reported), [&] { return all_at_stage(2); });
    if (must_kill()) kill_status_ = status;
  }
  on_thread([&] { quit_ = true; });
  thread_.join();
}

// MPI_Finalize needs all ranks, and waits for bytes in flight. Where it would not return, the lowest rank that is here
// kills the job, and the others wait for that: mpirun does not always survive several MPI_Abort at once.
bool Engine::must_kill() {
  std::unique_lock lock(mutex_);
  const auto here = [](const Other& other) { return other.stage == 2; };
  const auto ends_well = [&](const Other& other) { return here(other) && !other.stuck; };
  if (std::all_of(others_.begin(), others_.end(), ends_well)) return false;
  const bool first = std::none_of(others_.begin(), others_.begin() + rank_, here);
  lock.unlock();
  if (!first) std::this_thread::sleep_for(time_to_be_killed);
  return true;
}

Engine::CallScope::CallScope(Engine& engine, const Group& group, const Call& call, bool is_new)
    : engine_(engine), exceptions_(std::uncaught_exceptions()) {
  const std::lock_guard lock(engine_.activity_mutex_);
  engine_.activity_group_ = &group;
  engine_.activity_.call = call;
  engine_.activity_.calls += is_new ? 1 : 0;
  engine_.activity_.inside = true;
}

Engine::CallScope::~CallScope() {
  if (std::uncaught_exceptions() > exceptions_) return;  // other ranks' messages name the call in which a rank failed
  const std::lock_guard lock(engine_.activity_mutex_);
  engine_.activity_.inside = false;
}

}  // namespace tera::mpi
