// The rank's side of the control plane; its thread's side is in control_thread.cpp.

#include "tera/comm/control/control.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <algorithm>

#include "tera/base/error.h"
#include "tera/base/signals.h"
#include "tera/comm/comm.h"

namespace tera::control {
namespace {

using namespace std::chrono_literals;

constexpr auto time_to_answer = 1s;
constexpr auto time_to_be_released = 2s;  // the coordinator waits for reports for a second
constexpr std::size_t max_reason = 4096;

// Two threads of one rank that gather at once would take each other's answers.
class SingleCaller {
 public:
  explicit SingleCaller(std::atomic<bool>& inside) : inside_(inside) {
    require(!inside.exchange(true), "two threads of a rank join, split or meet at once; one does so at a time");
  }
  ~SingleCaller() { inside_ = false; }
  SingleCaller(const SingleCaller&) = delete;
  SingleCaller& operator=(const SingleCaller&) = delete;

 private:
  std::atomic<bool>& inside_;
};

}  // namespace

Control::Control(Links links, const ControlOptions& options, FunctionRef<void(std::string_view)> report)
    : options_(options), report_(report), wake_(connected_pair()), link_(std::move(links.to_coordinator)) {
  if (!links.to_ranks.empty())
    coordinator_ =
        std::make_unique<Coordinator>(std::move(links.to_ranks), std::min(options.heartbeat_timeout, options.timeout));
  calls_.reserve(Coordinator::expected_groups);
  last_heard_ = last_check_ = Clock::now();
  thread_ = start_thread_with_signals_blocked([this] { run(); });
}

Control::~Control() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_control_thread();
  thread_.join();
}

ControlGroup Control::world() {
  ControlGroup group{.name = "world", .id = ++worlds_made_, .members = {}, .rank = rank()};  // split() makes larger ids
  for (int r = 0; r < size(); ++r) group.members.push_back(r);
  return group;
}

void Control::wake_control_thread() {
  const char something = 0;
  [[maybe_unused]] const auto sent = ::send(wake_.first.get(), &something, 1, MSG_NOSIGNAL);  // full: it wakes anyway
}

void Control::post(FrameKind kind, const Packer& payload) {
  {
    const std::lock_guard lock(mutex_);
    link_.send(kind, payload.bytes());
  }
  wake_control_thread();
}

// done() is evaluated with mutex_ held.
template <class Done>
bool Control::sleep_for(Clock::duration time, const Done& done) {
  std::unique_lock lock(mutex_);
  for (WaitTime left(time); !done(); left.end_nap()) {
    if (left.is_over()) return false;
    changed_.wait_until(lock, left.nap_end());
  }
  return true;
}

void Control::gather(ControlGroup& group, const Call& call, std::span<const std::byte> local,
                     std::span<std::byte> all) {
  require(all.size() == local.size() * group.members.size(), "{}: room for {} bytes of {} ranks with {} each",
          group.name, all.size(), group.size(), local.size());
  run_round(group, call, {.local = local, .all = all, .from_first = false});
}

void Control::broadcast_from_first(ControlGroup& group, const Call& call, std::span<std::byte> bytes) {
  const std::span<const std::byte> local = bytes;
  run_round(group, call, {.local = local.first(group.rank == 0 ? bytes.size() : 0), .all = bytes, .from_first = true});
}

void Control::run_round(ControlGroup& group, const Call& call, const Contribution& contribution) {
  constexpr std::size_t head_bytes = 1024;  // bytes that a frame's head may take
  require(contribution.local.size() + head_bytes <= Link::max_payload &&
              contribution.all.size() + head_bytes <= Link::max_gathered,
          "{}: {} ranks gather {} bytes, {} of each; that is too much", group.name, group.size(),
          contribution.all.size(), contribution.local.size());
  const SingleCaller only(gathering_);
  if (failed()) throw_failure(group.name, call);
  ++group.rounds;
  note(group, call, /*is_new=*/true, /*inside=*/true);
  {
    const std::lock_guard lock(mutex_);
    awaited_ = {.group = group.id, .round = group.rounds, .into = contribution.all, .done = false, .refusal = {}};
  }
  Packer part;
  part.put(group.id).put(group.rounds).put(static_cast<std::int32_t>(group.size()));
  part.put(static_cast<std::int32_t>(group.rank)).put(call);
  part.put(static_cast<std::uint8_t>(contribution.from_first)).put_bytes(contribution.local);
  post(FrameKind::gather, part);
  const bool in_time = sleep_for(options_.timeout, [&] { return awaited_.done || awaited_.refusal || failed_.load(); });
  std::optional<std::string> refusal;
  bool done = false;
  {
    const std::lock_guard lock(mutex_);
    refusal = awaited_.refusal;
    done = awaited_.done;
    awaited_ = {};
  }
  if (done) return note_return();
  if (refusal) give_up(fmt::format("{}: {}", group.name, *refusal));
  if (in_time) throw_failure(group.name, call);
  give_up_gathering(group, call);
}

ControlGroup Control::split(ControlGroup& group, int color, int key, std::string name) {
  struct Choice {
    int color, key;
    std::uint64_t id;
  };
  const std::uint64_t id = static_cast<std::uint64_t>(rank() + 1) << 32 | ++groups_made_;  // no other rank has it
  const Choice local{color, key, id};
  std::vector<Choice> choices(group.members.size());
  gather(group, {.kind = CallKind::split}, std::as_bytes(std::span(&local, 1)),
         std::as_writable_bytes(std::span(choices)));
  const auto choice = [&](int r) -> const Choice& { return choices[static_cast<std::size_t>(r)]; };
  std::vector<int> ranks;  // members of the new group, as ranks of `group`
  for (int r = 0; r < group.size(); ++r)
    if (choice(r).color == color) ranks.push_back(r);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return choice(a).key < choice(b).key; });
  ControlGroup part{.name = std::move(name), .id = choice(ranks.front()).id, .members = {}};
  for (int r : ranks) part.members.push_back(group.members[static_cast<std::size_t>(r)]);
  part.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), group.rank) - ranks.begin());
  return part;
}

void Control::give_up_gathering(const ControlGroup& group, const Call& call) {
  const std::string who = query({.group = group.id, .number = group.rounds, .by = AbsentBy::gather}, group.members);
  if (failed()) throw_failure(group.name, call);
  give_up(fmt::format("{}: {} on rank {} waited {:g} s: {}", group.name, to_string(call), rank(),
                      std::chrono::duration<double>(options_.timeout).count(), who));
}

std::string Control::query_absent(const ControlGroup& group, std::span<const int> ranks, std::uint64_t number) {
  return query({.group = group.id, .number = number, .by = AbsentBy::call}, ranks);
}

std::string Control::describe_absent(std::span<const int> ranks) { return query({.by = AbsentBy::asker}, ranks); }

std::string Control::query(const Query& query, std::span<const int> ranks) {
  Packer question;
  question.put(query);
  const auto others =
      static_cast<std::uint32_t>(std::count_if(ranks.begin(), ranks.end(), [&](int r) { return r != rank(); }));
  question.put(others);
  for (const int r : ranks)
    if (r != rank()) question.put(static_cast<std::int32_t>(r));
  {
    const std::lock_guard lock(mutex_);
    answer_.reset();
  }
  post(FrameKind::query, question);
  sleep_for(time_to_answer, [&] { return answer_.has_value() || failed_.load(); });
  const std::lock_guard lock(mutex_);
  return answer_.value_or("rank 0 does not say who did not come");
}

void Control::note_call(ControlGroup& group, const Call& call) {
  if (call.kind != CallKind::exchange) ++group.calls;  // only the ranks concerned make an exchange
  {
    const std::lock_guard lock(activity_mutex_);
    const auto found =
        std::find_if(calls_.begin(), calls_.end(), [&](const auto& known) { return known.first == group.id; });
    if (found == calls_.end())
      calls_.emplace_back(group.id, group.calls);
    else
      found->second = group.calls;
  }
  note(group, call, /*is_new=*/true, /*inside=*/false);
}

void Control::note_wait(const ControlGroup& group, const Call& call) {
  note(group, call, /*is_new=*/false, /*inside=*/true);
}

void Control::note(const ControlGroup& group, const Call& call, bool is_new, bool inside) {
  const std::lock_guard lock(activity_mutex_);
  activity_group_ = group.name;
  activity_.call = call;
  activity_.calls += is_new ? 1 : 0;
  activity_.inside = inside;
}

void Control::note_return() {
  const std::lock_guard lock(activity_mutex_);
  activity_.inside = false;
}

bool Control::wait_for_failure(std::chrono::milliseconds time) {
  return sleep_for(time, [&] { return failed_.load(); });
}

void Control::throw_failure(std::string_view group, const Call& call) {
  Failure failure;
  {
    const std::lock_guard lock(mutex_);
    failure = failure_;
  }
  if (failure.rank == rank() && !failure.lost) throw CommError(failure.reason);  // the reason names its place
  const std::string why =
      failure.lost ? failure.reason : fmt::format("rank {} failed: {}", failure.rank, failure.reason);
  throw CommAborted(fmt::format("{}: {} on rank {} ended because {}", group, to_string(call), rank(), why));
}

void Control::abort(std::string_view reason) noexcept { fail_with(reason, /*unwinds=*/true); }

void Control::fail_with(std::string_view reason, bool unwinds) noexcept {
  const std::string_view some = reason.substr(0, max_reason);
  {
    const std::lock_guard lock(mutex_);
    if (!local_fault_.empty()) return;  // the first fault counts
    local_fault_ = some;
    unwinds_ = unwinds;
    if (!failed_) {
      failure_ = {.rank = rank(), .lost = false, .reason = local_fault_};
      failed_at_ = Clock::now();
      failed_ = true;
    }
  }
  Packer text;
  text.put_text(some);
  post(FrameKind::fault, text);
}

void Control::give_up(const std::string& message) {
  fail_with(message, /*unwinds=*/false);
  throw CommError(message);
}

JobEnd Control::leave(const std::string& fault, bool work_failed, bool transfers_over) {
  if (!fault.empty()) abort(fault);
  {
    const std::lock_guard lock(mutex_);
    has_left_ = true;
  }
  Packer bye;
  bye.put(static_cast<std::uint8_t>(transfers_over)).put(static_cast<std::uint8_t>(work_failed));
  post(FrameKind::bye, bye);
  sleep_for(Clock::duration::max(), [&] { return ended_; });
  const std::lock_guard lock(mutex_);
  return {.lines = lines_of(to_report_), .in_order = ended_in_order_, .kills = kills_};
}

void Control::await_reports() {
  post(FrameKind::reported, {});
  sleep_for(time_to_be_released, [&] { return released_; });
}

std::vector<std::string> Control::lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace tera::control
