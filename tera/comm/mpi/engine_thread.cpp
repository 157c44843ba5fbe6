// The engine's thread, which owns MPI.

#include <fmt/core.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>

#include "tera/base/cores.h"
#include "tera/comm/mpi/engine.h"

namespace tera::mpi {
namespace {

using namespace std::chrono_literals;

// Messages mostly come soon, so the thread of a waiting rank spins first: about 100 microseconds where it has a core to
// itself, 10 elsewhere. Then it sleeps, longer with time: others may need the core, and a thread that has slept gets it
// back sooner than one that has yielded.
constexpr int polls_with_own_core = 1000, polls_without = 100;
constexpr auto shortest_sleep = 20us, longest_sleep = 100us;  // tasks are in flight
constexpr auto idle_sleep = 1ms;                              // only pings of other ranks can come

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Engine::run(Ops& combiner) {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // nanoseconds: a short sleep is short
  try {
    wire_ = std::make_unique<Wire>();
    runner_ = std::make_unique<TaskRunner>(*wire_, combiner);
  } catch (const std::exception& error) {
    start_fault_ = error.what();
  }
  {
    const std::lock_guard lock(mutex_);
    if (wire_) {
      rank_ = wire_->rank();
      size_ = wire_->size();
      has_own_core_ = wire_->ranks_on_machine() <= usable_cores();
      others_.resize(static_cast<std::size_t>(size_));
    }
    started_ = true;
  }
  for_rank_.notify_all();
  if (!start_fault_.empty()) return;
  for (int idle_polls = 0; !quit_;) {
    idle_polls = poll() ? 0 : idle_polls + 1;
    if (idle_polls > 0) rest(idle_polls);
  }
  if (kill_status_ != 0) wire_->kill_job(kill_status_, options_.launcher_kills);
  while (wire_->sends_in_flight()) wire_->poll();
  runner_.reset();
  wire_.reset();
}

bool Engine::poll() {
  bool any = false;
  try {
    any = take_requests();
    if (wire_->poll()) {
      any = true;
      for (const MovedPiece& piece : wire_->moved()) runner_->piece_moved(piece);
      for (Message* message : wire_->messages()) handle(*message);
    }
    if (any && !failed()) runner_->advance();
  } catch (const std::exception& error) {
    fail_with(rank_, error.what());
    any = true;
  }
  if (runner_->take_any_done()) wake_rank();
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
  try {
    thread_call.work();
  } catch (const std::exception& error) {
    fail_with(rank_, error.what());
  }
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

void Engine::handle(Message& message) {
  const Header& header = message.header;
  if (header.kind == MessageKind::call) {
    runner_->accept(message);  // keeps the message
    return;
  }
  const std::string text(reinterpret_cast<const char*>(message.payload.data()), message.payload_bytes);
  Other& other = others_[static_cast<std::size_t>(message.source)];
  switch (header.kind) {
    case MessageKind::abort: fail_with(message.source, text); break;
    case MessageKind::ping: {
      const std::lock_guard lock(activity_mutex_);
      activity_.rank = rank_;
      activity_.group = activity_group_ == nullptr ? std::string_view() : std::string_view(activity_group_->name);
      const bool has_left = others_[static_cast<std::size_t>(rank_)].stage > 0;
      send_text(message.source, MessageKind::pong, to_string(activity_) + (has_left ? ", and has ended" : ""));
      break;
    }
    case MessageKind::pong: {
      const std::lock_guard lock(mutex_);
      other.answer = text;
      break;
    }
    case MessageKind::bye: {
      {
        const std::lock_guard lock(mutex_);
        other.stage = std::max(other.stage, header.stage);
        other.stuck = other.stuck || (header.stage == 2 && header.failed_or_stuck);
      }
      if (header.stage == 1 && header.failed_or_stuck && !failed()) failed_rank_ = message.source;
      break;
    }
    case MessageKind::call: break;
  }
  wire_->release(message);
  wake_rank();
}

void Engine::fail_with(int rank, std::string reason) {
  const bool local = rank == rank_;
  {
    const std::lock_guard lock(mutex_);
    Other& other = others_[static_cast<std::size_t>(rank)];
    if (other.reason.has_value()) return;  // the first fault of a rank counts
    reason.resize(std::min(reason.size(), Message::capacity));
    other.reason = reason;
  }
  int none = -1;
  failed_rank_.compare_exchange_strong(none, rank);
  if (local) broadcast_message(MessageKind::abort, reason);
  wake_rank();
}

void Engine::broadcast_message(MessageKind kind, std::string_view text, int stage, bool failed_or_stuck) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    Message& message = wire_->take();
    message.header = {.kind = kind, .failed_or_stuck = failed_or_stuck, .stage = stage};
    std::memcpy(message.payload.data(), text.data(), text.size());
    wire_->send(peer, message, text.size());
  }
}

void Engine::send_text(int peer, MessageKind kind, std::string_view text) {
  Message& message = wire_->take();
  message.header = {.kind = kind};
  const std::size_t bytes = std::min(text.size(), Message::capacity);
  std::memcpy(message.payload.data(), text.data(), bytes);
  wire_->send(peer, message, bytes);
}

}  // namespace tera::mpi
