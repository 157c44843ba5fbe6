// The engine's thread, which owns MPI.

#include <fmt/core.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <span>
#include <string_view>
#include <utility>

#include "tera/base/cores.h"
#include "tera/base/machine.h"
#include "tera/comm/control/rendezvous.h"
#include "tera/comm/mpi/engine.h"

namespace tera::mpi {
namespace {

using namespace std::chrono_literals;

// Messages mostly come soon, so the thread of a waiting rank spins first: about 100 microseconds where it has a core to
// itself, 10 elsewhere. Then it sleeps, longer with time: others may need the core, and a thread that has slept gets it
// back sooner than one that has yielded.
constexpr int polls_with_own_core = 1000, polls_without = 100;
constexpr auto shortest_sleep = 20us, longest_sleep = 100us;  // tasks are in flight
constexpr auto idle_sleep = 1ms;                              // only messages for later calls can come
// All ranks were in MPI_Init a moment ago: only a network that lets TCP through nowhere, or a rank that died since,
// takes longer. The limit of other waits may be far longer, or far shorter than a busy machine needs.
constexpr auto shortest_rendezvous = 10s, longest_rendezvous = 60s;
constexpr const char* this_machine = "127.0.0.1";

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Engine::run(Ops& combiner) {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // nanoseconds: a short sleep is short
  start(combiner);
  if (start_fault_ != nullptr) return;
  for (int idle_polls = 0; !quit_;) {
    idle_polls = poll() ? 0 : idle_polls + 1;
    if (idle_polls > 0) rest(idle_polls);
  }
  if (kill_status_ != 0) wire_->kill_job(kill_status_, options_.launcher_kills);
  runner_.reset();
  wire_.reset();
}

void Engine::start(Ops& combiner) {
  std::exception_ptr fault;
  try {
    wire_ = std::make_unique<Wire>();
    runner_ = std::make_unique<TaskRunner>(*wire_, combiner);
    has_own_core_ = wire_->ranks_on_machine() <= usable_cores();
    find_rendezvous();
  } catch (...) {
    fault = std::current_exception();
    [[maybe_unused]] const Wire* const left_open = wire_.release();  // MPI_Finalize would wait for the other ranks
  }
  {
    const std::lock_guard lock(mutex_);
    start_fault_ = fault;
    started_ = true;
  }
  for_rank_.notify_all();
}

// Rank 0 listens at a port that is free: where all ranks share a machine, for that alone. Where it cannot, the others
// hear why, as they wait for the broadcast.
void Engine::find_rendezvous() {
  struct Endpoint {
    std::array<char, 256> host{};
    std::int32_t port = -1;
    std::array<char, 512> fault{};
  } endpoint;
  const bool one_machine = wire_->all_equal(network_domain_id());
  if (wire_->rank() == 0) {
    try {
      require(::gethostname(endpoint.host.data(), endpoint.host.size() - 1) == 0, "this machine has no name");
      listener_ = control::listen_at(one_machine ? this_machine : "", 0, 0);
      endpoint.port = listener_->port;
    } catch (const std::exception& error) {
      std::string_view(error.what()).copy(endpoint.fault.data(), endpoint.fault.size() - 1);
    }
  }
  wire_->broadcast(std::as_writable_bytes(std::span(&endpoint, 1)));
  if (endpoint.port < 0) fail_user("rank 0 opens no port for the others: {}", endpoint.fault.data());
  rendezvous_ = {
      .address = {.host = one_machine ? this_machine : endpoint.host.data(),
                  .port = endpoint.port,
                  .spare_ports = 0,
                  .job = fmt::format("{}:{}", endpoint.host.data(), endpoint.port)},
      .rank = wire_->rank(),
      .size = wire_->size(),
      .timeout = std::clamp<std::chrono::milliseconds>(options_.timeout, shortest_rendezvous, longest_rendezvous),
      .where_from = "MPI says where it is; beside MPI the ranks need TCP between their machines"};
}

bool Engine::poll() {
  bool any = false;
  try {
    any = take_requests();
    if (control_ != nullptr && wire_->poll()) {
      any = true;
      for (const MovedPiece& piece : wire_->moved()) runner_->piece_moved(piece);
      for (Message* message : wire_->messages()) runner_->accept(*message);
    }
    if (any && !failed()) runner_->advance();
  } catch (const std::exception& error) {
    control_->abort(error.what());
  }
  const bool news = failed() && !std::exchange(saw_failure_, true);
  if (runner_->take_any_done() || news) wake_rank();
  return any;
}

bool Engine::take_requests() {
  bool any = false;
  while (queued_.load() > 0) {
    Request request;
    {
      const std::lock_guard lock(mutex_);
      request = queue_[queue_begin_];
      queue_begin_ = (queue_begin_ + 1) % queue_.size();
      queued_.fetch_sub(1);
    }
    any = true;
    if (request.task != nullptr) runner_->start(*request.task);
    if (request.thread_call == nullptr) continue;
    run_thread_call(*request.thread_call);
  }
  return any;
}

void Engine::run_thread_call(ThreadCall& thread_call) {
  thread_call.work();
  thread_call.done = true;  // the rank destroys it after this
  wake_rank();
}

void Engine::rest(int idle_polls) {
  const bool busy = !runner_->idle();
  const int max_polls = has_own_core_ ? polls_with_own_core : polls_without;
  if (busy && sleepers_.load() > 0 && idle_polls < max_polls) return pause();
  std::unique_lock lock(mutex_);
  thread_sleeps_ = true;
  const auto busy_sleep = std::clamp(std::chrono::microseconds(idle_polls - max_polls), shortest_sleep, longest_sleep);
  for_thread_.wait_for(lock, busy ? busy_sleep : std::chrono::microseconds(idle_sleep),
                       [&] { return queued_.load() > 0; });
  thread_sleeps_ = false;
}

void Engine::wake_rank() {
  if (sleepers_.load() == 0) return;
  { const std::lock_guard lock(mutex_); }  // a thread between its check and its sleep holds it
  for_rank_.notify_all();
}

}  // namespace tera::mpi
