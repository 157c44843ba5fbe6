// The rank's side of an engine. engine_thread.cpp has the other.

#include "tera/backend/mpi/engine.h"

#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "tera/base/signals.h"

namespace tera::mpi {
namespace {

using namespace std::chrono_literals;

constexpr auto time_to_answer = 1s;     // for ranks that are asked what they do
constexpr auto time_to_leave = 1s;      // for ranks after one has failed
constexpr auto time_to_tell = 500ms;    // for others who failed, too
constexpr auto time_to_be_told = 1s;    // where others have something to tell
constexpr auto time_to_be_killed = 3s;  // by another rank
constexpr auto time_to_let_go = 300ms;

}  // namespace

Engine::Engine(const MpiOptions& options, Ops& combiner) : options_(options) {
  thread_ = start_undisturbed([this, &combiner] { run(combiner); });
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
  int own = 0;
  while (members[static_cast<std::size_t>(own)] != rank_) ++own;
  return *groups_.emplace_back(std::make_unique<Group>(std::move(name), id, std::move(members), own));
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
  Errand errand{.work = work};
  push({.errand = &errand});
  sleep_until(Clock::time_point::max(), [&] { return errand.done.load(); });
}

// done() is asked often, and reads atomics or what mutex_ guards.
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

// When the time is nearly over, the others are asked what they do, so that there is something to tell when it is.
void Engine::wait(Group& group, std::uint64_t number) {
  while (Task* open = group.first_open(number)) {
    const InCall scope(*this, group, open->call, false);
    const auto ended = [&] {
      open = group.first_open(number);
      return open == nullptr || failed();
    };
    const auto deadline = Clock::now() + options_.timeout;
    if (!sleep_until(deadline - std::min<Clock::duration>(time_to_answer, options_.timeout / 2), ended)) {
      ask(group);
      sleep_until(deadline, ended);
    }
    if (open != nullptr && failed()) throw_failure(group, open->call);
    if (open != nullptr) give_up_waiting(group, *open);
  }
  group.collect();
}

void Engine::throw_failure(const Group& group, const Call& call) {
  let_go_of_memory();
  const int who = failed_rank_.load();
  const std::string reason = [&] {
    const std::lock_guard lock(mutex_);
    return others_[static_cast<std::size_t>(who)].reason.value_or("for a reason that it did not tell");
  }();
  if (who == rank_) throw CommError(reason);  // which names its place
  throw CommAborted(fmt::format("{}: {} on rank {} ended because rank {} failed: {}", group.name, to_string(call),
                                rank_, who, reason));
}

void Engine::ask(const Group& group) {
  on_thread([&] {
    for (int rank : group.members) {
      others_[static_cast<std::size_t>(rank)].answer.reset();
      if (rank != rank_) send_text(rank, MessageKind::ping, "");
    }
  });
}

// Unless it is done after all.
void Engine::give_up_waiting(Group& group, Task& task) {
  std::vector<int> absent;
  std::vector<std::string> doing;
  on_thread([&] {
    if (!task.done.load()) absent = runner_->absent(task);
    for (int rank : absent) {
      Other& other = others_[static_cast<std::size_t>(rank)];
      other.silent = !other.answer.has_value();
      doing.push_back(other.answer.value_or(fmt::format("rank {} does not answer: it is stopped, or gone", rank)));
    }
  });
  if (absent.empty()) return;
  const double seconds = std::chrono::duration<double>(options_.timeout).count();
  give_up(fmt::format("{}: {} on rank {} waited {:g} s: {}", group.name, to_string(task.call), rank_, seconds,
                      did_not_come(absent, doing)));
}

void Engine::give_up(const std::string& message, std::source_location where) {
  abort(message);
  let_go_of_memory();
  throw CommError(message, where);
}

void Engine::abort(std::string_view reason) noexcept {
  on_thread([&] { fail_with(rank_, std::string(reason)); });
}

void Engine::let_go_of_memory() noexcept {
  if (std::exchange(has_let_go_, true)) return;
  std::size_t under_way = 0;
  on_thread([&] {
    runner_->forget_all();
    wire_->forget_bytes();
  });
  for (const auto deadline = Clock::now() + time_to_let_go; Clock::now() < deadline;) {
    on_thread([&] { under_way = wire_->bytes_under_way(); });
    if (under_way == 0) return;
    std::this_thread::sleep_for(1ms);
  }
}

bool Engine::all_at_stage(int stage) const {
  return std::all_of(others_.begin(), others_.end(), [&](const Other& o) { return o.stage >= stage || o.silent; });
}

void Engine::say_bye(int stage, bool failed_or_stuck) {
  on_thread([&] {
    Other& own = others_[static_cast<std::size_t>(rank_)];
    own.stage = stage;
    own.stuck = stage == 2 && failed_or_stuck;
    tell_all(MessageKind::bye, "", stage, failed_or_stuck);
  });
}

std::string Engine::leave(const std::string& fault, bool work_failed) {
  if (!fault.empty()) abort(fault);
  say_bye(1, work_failed);
  sleep_until(Clock::time_point::max(), [&] { return failed() || all_at_stage(1); });
  if (!failed()) return {};
  sleep_until(Clock::now() + time_to_leave, [&] { return all_at_stage(1); });
  const std::lock_guard lock(mutex_);
  const auto mine = others_.begin() + rank_;
  const auto told_there = [&](const Other& lower) { return lower.reason == mine->reason; };
  if (!mine->reason || std::any_of(others_.begin(), mine, told_there)) return {};
  return fault.empty() ? *mine->reason : fault;
}

void Engine::end(int status) {
  if (failed()) {
    std::fflush(nullptr);  // nothing is written after a kill
    bool stuck = false;
    on_thread([&] { stuck = wire_->bytes_under_way() > 0; });
    say_bye(2, stuck);
    const bool has_told = others_[static_cast<std::size_t>(rank_)].reason.has_value();
    sleep_until(Clock::now() + (has_told ? time_to_tell : time_to_be_told), [&] { return all_at_stage(2); });
    if (must_kill()) kill_status_ = status;
  }
  on_thread([&] { quit_ = true; });
  thread_.join();
}

// MPI ends with all ranks, and waits for bytes that are under way. Where it cannot, the lowest rank that is here kills
// the job, and the others wait for it: mpirun does not always survive being asked by several at once.
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

Engine::InCall::InCall(Engine& engine, const Group& group, const Call& call, bool is_new)
    : engine_(engine), exceptions_(std::uncaught_exceptions()) {
  const std::lock_guard lock(engine_.doing_mutex_);
  engine_.doing_group_ = &group;
  engine_.doing_.call = call;
  engine_.doing_.calls += is_new ? 1 : 0;
  engine_.doing_.inside = true;
}

Engine::InCall::~InCall() {
  if (std::uncaught_exceptions() > exceptions_) return;  // what a rank failed in is what the others should read
  const std::lock_guard lock(engine_.doing_mutex_);
  engine_.doing_.inside = false;
}

}  // namespace tera::mpi
