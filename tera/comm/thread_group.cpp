#include "tera/comm/thread_group.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "tera/base/cores.h"
#include "tera/base/joined.h"

namespace tera {
namespace {

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

std::string describe(Activity& activity, int rank) {
  const std::lock_guard lock(activity.mutex);
  return to_string({.rank = rank,
                    .group = activity.group == nullptr ? std::string_view() : activity.group->name(),
                    .call = activity.call,
                    .calls = activity.calls,
                    .inside = activity.inside});
}

}  // namespace

ThreadCoordinatorState::ThreadCoordinatorState(int ranks, const ThreadCommOptions& options)
    : options_(options),
      // The others arrive within microseconds if each has a core to itself. Else spinning takes the core from them, but
      // yielding it is cheaper than sleeping and being woken.
      spins_(ranks <= usable_cores() ? 2000 : 0),
      yields_(ranks <= usable_cores() ? 0 : 20),
      activities_(static_cast<std::size_t>(ranks)) {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) all[static_cast<std::size_t>(rank)] = rank;
  make_group("world", std::move(all));
}

ThreadGroup& ThreadCoordinatorState::make_group(std::string name, std::vector<int> members) {
  auto group = std::make_unique<ThreadGroup>(*this, std::move(name), std::move(members));
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
  return *groups_.back();
}

void ThreadCoordinatorState::abort(int rank, std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (failed_rank() >= 0) return;
  reason_size_ = std::min(reason.size(), reason_.size());
  std::copy_n(reason.begin(), reason_size_, reason_.begin());
  failed_rank_.store(rank, std::memory_order_release);
  for (auto& group : groups_) group->wake();
}

ThreadGroup::ThreadGroup(ThreadCoordinatorState& coordinator, std::string name, std::vector<int> members)
    : coordinator_(coordinator), name_(std::move(name)), members_(std::move(members)), slots_(members_.size()) {}

void ThreadGroup::wake() {
  { const std::lock_guard lock(mutex_); }  // a thread between its check and its sleep holds it
  changed_.notify_all();
  for (Slot& s : slots_) s.copied.notify_all();
}

bool ThreadGroup::all_at(std::uint64_t phase) const {
  return std::all_of(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.phase.load() >= phase; });
}

// done() is evaluated with the mutex held or, when it reads atomics only, without.
template <class Done>
ThreadGroup::Waited ThreadGroup::wait_until(std::condition_variable& change, const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + coordinator_.options().timeout;
  std::unique_lock lock(mutex_);
  change.wait_until(lock, deadline, [&] { return done() || coordinator_.failed_rank() >= 0; });
  if (done()) return Waited::done;
  return coordinator_.failed_rank() >= 0 ? Waited::aborted : Waited::timed_out;
}

void ThreadGroup::arrive_and_wait(int rank, const Arrival& arrival) {
  Slot& mine = slot(rank);
  const std::uint64_t phase = mine.phase.load(std::memory_order_relaxed) + 1;
  mine.arrivals[phase % 2] = arrival;
  // The last rank to arrive wakes the others; of two that arrive at once, one sees both, since these stores and loads
  // are sequentially consistent.
  mine.phase.store(phase);
  const auto all_arrived = [&] { return all_at(phase); };
  if (all_arrived()) wake();
  for (int spin = 0; spin < coordinator_.spins() && !all_arrived(); ++spin) pause();
  for (int yield = 0; yield < coordinator_.yields() && !all_arrived(); ++yield) std::this_thread::yield();
  if (!all_arrived()) {
    if (const Waited waited = wait_until(changed_, all_arrived); waited != Waited::done) {
      std::vector<int> absent;
      for (int r = 0; r < size(); ++r)
        if (slot(r).phase.load(std::memory_order_acquire) < phase) absent.push_back(r);
      if (!absent.empty()) fail_absent(rank, waited, absent);  // none absent: the last one arrived just now
    }
  }
  compare_calls(rank);
  // All arrived, but where a rank has failed since, its memory may be gone.
  if (coordinator_.failed_rank() >= 0) fail_absent(rank, Waited::aborted, {});
}

const Arrival& ThreadGroup::arrival(int rank, int reader) const {
  return slot(rank).arrivals[slot(reader).phase.load(std::memory_order_relaxed) % 2];
}

void ThreadGroup::compare_calls(int rank) {
  const Call& mine = arrival(rank, rank).call;
  bool same = true;
  for (int r = 0; r < size(); ++r) same = same && arrival(r, rank).call == mine;
  if (same) return;
  std::vector<std::string> calls;
  for (int r = 0; r < size(); ++r)
    calls.push_back(fmt::format("rank {}: {}", world_rank(r), to_string(arrival(r, rank).call)));
  give_up(rank, fmt::format("{}: the ranks make different calls: {}", name_, joined(calls, "; ")));
}

void ThreadGroup::fail_absent(int rank, Waited waited, const std::vector<int>& absent) {
  std::vector<int> ranks;
  std::vector<std::string> activities;
  for (int r : absent) {
    ranks.push_back(world_rank(r));
    activities.push_back(describe(coordinator_.activity(world_rank(r)), world_rank(r)));
  }
  Activity& activity = coordinator_.activity(world_rank(rank));
  const std::string call = [&] {
    const std::lock_guard lock(activity.mutex);
    return to_string(activity.call);
  }();
  const std::string where = fmt::format("{}: {} on rank {}", name_, call, world_rank(rank));
  const std::string who = describe_absent(ranks, activities);
  if (waited == Waited::aborted)
    throw CommAborted(fmt::format("{} ended because rank {} failed: {}{}{}", where, coordinator_.failed_rank(),
                                  coordinator_.reason(), absent.empty() ? "" : "; ", absent.empty() ? "" : who),
                      std::source_location::current());
  const double seconds = std::chrono::duration<double>(coordinator_.options().timeout).count();
  give_up(rank, fmt::format("{} waited {:g} s: {}", where, seconds, who));
}

void ThreadGroup::give_up(int rank, const std::string& message, std::source_location where) {
  coordinator_.abort(world_rank(rank), message);
  throw CommError(message, where);
}

PostedTransfer* ThreadGroup::find_posted(int rank, const Transfer& transfer) {
  PostedTransfer* oldest = nullptr;
  for (PostedTransfer& post : slot(transfer.peer).posts) {
    const bool matches =
        post.state == PostedTransfer::State::waiting && post.peer == rank && post.send != transfer.send;
    if (matches && (oldest == nullptr || post.order < oldest->order)) oldest = &post;
  }
  return oldest;
}

PostedTransfer* ThreadGroup::match_or_post(int rank, const Transfer& transfer, Ticket ready, std::uint64_t exchange) {
  // The memory of a post may be gone when its rank has failed.
  if (coordinator_.failed_rank() >= 0) fail_absent(rank, Waited::aborted, {});
  std::unique_lock lock(mutex_);
  if (PostedTransfer* match = find_posted(rank, transfer)) {
    match->state = PostedTransfer::State::copying;
    match->copier = rank;
    return match;
  }
  auto& posts = slot(rank).posts;
  const auto free = std::find_if(posts.begin(), posts.end(),
                                 [](const PostedTransfer& p) { return p.state == PostedTransfer::State::free; });
  if (free == posts.end()) {
    lock.unlock();
    give_up(rank, fmt::format("{}: rank {} has {} transfers in flight; finish the tickets of some", name_,
                              world_rank(rank), posts.size()));
  }
  *free = {.state = PostedTransfer::State::waiting,
           .send = transfer.send,
           .peer = transfer.peer,
           .tensor = transfer.tensor,
           .ready = ready,
           .order = ++orders_,
           .exchange = exchange};
  return nullptr;
}

void ThreadGroup::finish_reading(int rank) {
  slot(rank).read.store(slot(rank).phase.load());
  if (leaving_.load() > 0) wake();  // leave() increments leaving_ first and then loads read
}

void ThreadGroup::exit_call(int rank) {
  slot(rank).inside.fetch_sub(1);
  if (leaving_.load() > 0) wake();
}

// After a failure no rank stays in a call for long: waits end with CommAborted, and copies end.
void ThreadGroup::wait_for_others_to_exit(int rank) {
  const auto deadline = std::chrono::steady_clock::now() + coordinator_.options().timeout;
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] {
    for (int r = 0; r < size(); ++r)
      if (r != rank && slot(r).inside.load() > 0) return false;
    return true;
  });
}

void ThreadGroup::leave(int rank) noexcept {
  const auto is_being_copied = [](const PostedTransfer& post) { return post.state == PostedTransfer::State::copying; };
  const auto copied_here = [&](const PostedTransfer& post) {
    return post.state == PostedTransfer::State::done && post.copier == rank;
  };
  {
    const std::lock_guard lock(mutex_);
    for (PostedTransfer& post : slot(rank).posts)
      if (!is_being_copied(post)) post.state = PostedTransfer::State::free;
  }
  leaving_.fetch_add(1);
  changed_.notify_all();
  const std::uint64_t phase = slot(rank).phase.load();
  const Waited waited = wait_until(changed_, [&] {
    const auto done_with_me = [&](const Slot& s) {
      return s.read.load() >= phase && std::none_of(s.posts.begin(), s.posts.end(), copied_here);
    };
    return std::all_of(slots_.begin(), slots_.end(), done_with_me) &&
           std::none_of(slot(rank).posts.begin(), slot(rank).posts.end(), is_being_copied);
  });
  if (coordinator_.failed_rank() >= 0) wait_for_others_to_exit(rank);
  leaving_.fetch_sub(1);
  if (waited == Waited::timed_out) coordinator_.abort(world_rank(rank), "left while others still used its queue");
}

void ThreadGroup::copied(PostedTransfer& post, int owner, Ticket done) {
  {
    const std::lock_guard lock(mutex_);
    post.done = done;
    post.state = PostedTransfer::State::done;
  }
  slot(owner).copied.notify_all();
  if (leaving_.load() > 0) changed_.notify_all();
}

bool ThreadGroup::note_local_copies(int rank, std::uint64_t exchange, Ticket local_copies) {
  const std::lock_guard lock(mutex_);
  bool any = false;
  for (PostedTransfer& post : slot(rank).posts) {
    if (post.state == PostedTransfer::State::free || post.exchange != exchange) continue;
    post.local_copies = local_copies;
    any = true;
  }
  return any;
}

void ThreadGroup::finish_exchanges(int rank, std::uint64_t exchange) {
  auto& posts = slot(rank).posts;
  const auto open = [&](const PostedTransfer& post) {
    return post.exchange <= exchange &&
           (post.state == PostedTransfer::State::waiting || post.state == PostedTransfer::State::copying);
  };
  const Waited waited = wait_until(slot(rank).copied, [&] { return std::none_of(posts.begin(), posts.end(), open); });
  if (waited != Waited::done) {
    std::vector<int> absent;
    {
      const std::lock_guard lock(mutex_);
      for (const PostedTransfer& post : posts)
        if (open(post) && std::find(absent.begin(), absent.end(), post.peer) == absent.end())
          absent.push_back(post.peer);
    }
    if (!absent.empty()) fail_absent(rank, waited, absent);
  }
  const auto done = [&](const PostedTransfer& post) {
    return post.state == PostedTransfer::State::done && post.exchange <= exchange;
  };
  while (true) {
    std::unique_lock lock(mutex_);
    const auto post = std::find_if(posts.begin(), posts.end(), done);
    if (post == posts.end()) return;
    lock.unlock();  // a done post is its rank's alone; until it is freed, the queue that copied exists, too
    for (const Ticket& ticket : {post->done, post->local_copies})
      if (ticket.timeline) ticket.timeline->finish(ticket.id);
    lock.lock();
    post->state = PostedTransfer::State::free;
    lock.unlock();
    if (leaving_.load() > 0) wake();
  }
}

CallScope::CallScope(ThreadCoordinatorState& coordinator, ThreadGroup& group, int rank, const Call& call)
    : group_(group),
      rank_(rank),
      activity_(coordinator.activity(group.world_rank(rank))),
      exceptions_(std::uncaught_exceptions()) {
  group.enter_call(rank);
  const std::lock_guard lock(activity_.mutex);
  activity_.group = &group;
  activity_.call = call;
  activity_.calls += 1;
  activity_.inside = true;
}

CallScope::~CallScope() {
  group_.exit_call(rank_);
  if (std::uncaught_exceptions() > exceptions_) return;  // other ranks' messages name the call in which a rank failed
  const std::lock_guard lock(activity_.mutex);
  activity_.inside = false;
}

}  // namespace tera
