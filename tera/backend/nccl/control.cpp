// The rank's side. control_thread.cpp has the other.

#include "tera/backend/nccl/control.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <algorithm>

#include "tera/base/error.h"
#include "tera/base/signals.h"
#include "tera/comm/comm.h"

namespace tera::nccl {
namespace {

using namespace std::chrono_literals;

constexpr auto time_to_answer = 1s;
constexpr auto longest_nap = 500ms;
constexpr std::size_t most_reason = 4096;
constexpr std::size_t usual_groups = 64;

// Threads of one rank that meet the others at once would take each other's answers.
class OneAtATime {
 public:
  explicit OneAtATime(std::atomic<bool>& inside) : inside_(inside) {
    require(!inside.exchange(true), "two threads of a rank join, split or meet at once; one does so at a time");
  }
  ~OneAtATime() { inside_ = false; }
  OneAtATime(const OneAtATime&) = delete;
  OneAtATime& operator=(const OneAtATime&) = delete;

 private:
  std::atomic<bool>& inside_;
};

}  // namespace

Control::Control(Links links, const ControlOptions& options, FunctionRef<void(std::string_view)> tell)
    : options_(options), tell_(tell), wake_(connected_pair()), link_(std::move(links.to_hub)) {
  if (!links.of_hub.empty())
    hub_ = std::make_unique<Hub>(std::move(links.of_hub), std::min(options.quiet, options.timeout));
  calls_.reserve(usual_groups);
  last_heard_ = last_look_ = Clock::now();
  thread_ = start_undisturbed([this] { run(); });
}

Control::~Control() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_thread();
  thread_.join();
}

ControlGroup Control::world() {
  ControlGroup group{.name = "world", .id = ++worlds_made_, .members = {}, .rank = rank()};  // parts have larger ids
  for (int r = 0; r < size(); ++r) group.members.push_back(r);
  return group;
}

void Control::wake_thread() {
  const char something = 0;
  [[maybe_unused]] const auto sent = ::send(wake_.first.get(), &something, 1, MSG_NOSIGNAL);  // full: it wakes anyway
}

void Control::post(FrameKind kind, const Packer& payload) {
  {
    const std::lock_guard lock(mutex_);
    link_.send(kind, payload.bytes());
  }
  wake_thread();
}

// done() is asked with mutex_ held. A nap counts for a second at most: in one that lasted longer the process was
// stopped, and did not wait.
template <class Done>
bool Control::sleep_for(Clock::duration time, const Done& done) {
  std::unique_lock lock(mutex_);
  for (Clock::duration left = time; !done();) {
    if (left <= Clock::duration::zero()) return false;
    const auto begin = Clock::now();
    news_.wait_for(lock, std::min<Clock::duration>(left, longest_nap));
    left -= std::min<Clock::duration>(Clock::now() - begin, 2 * longest_nap);
  }
  return true;
}

void Control::gather(ControlGroup& group, const Call& call, std::span<const std::byte> own, std::span<std::byte> all) {
  require(all.size() == own.size() * group.members.size(), "{}: room for {} bytes of {} ranks with {} each", group.name,
          all.size(), group.size(), own.size());
  meet(group, call, {.own = own, .all = all, .of_first = false});
}

void Control::take_from_first(ControlGroup& group, const Call& call, std::span<std::byte> bytes) {
  const std::span<const std::byte> own = bytes;
  meet(group, call, {.own = own.first(group.rank == 0 ? bytes.size() : 0), .all = bytes, .of_first = true});
}

void Control::meet(ControlGroup& group, const Call& call, const Brought& brought) {
  constexpr std::size_t room_for_head = 1024;  // of a frame
  require(brought.own.size() + room_for_head <= Link::most_payload &&
              brought.all.size() + room_for_head <= Link::most_gathered,
          "{}: {} ranks gather {} bytes, {} of each; that is too much", group.name, group.size(), brought.all.size(),
          brought.own.size());
  const OneAtATime only(meeting_);
  if (failed()) throw_failure(group.name, call);
  ++group.rounds;
  note_wait(group, call);
  {
    const std::lock_guard lock(mutex_);
    awaited_ = {.group = group.id, .round = group.rounds, .into = brought.all, .done = false, .refusal = {}};
  }
  Packer part;
  part.put(group.id).put(group.rounds).put(static_cast<std::int32_t>(group.size()));
  part.put(static_cast<std::int32_t>(group.rank)).put(call);
  part.put(static_cast<std::uint8_t>(brought.of_first)).put_bytes(brought.own);
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
  const Choice own{color, key, id};
  std::vector<Choice> choices(group.members.size());
  gather(group, {.kind = CallKind::split}, std::as_bytes(std::span(&own, 1)),
         std::as_writable_bytes(std::span(choices)));
  const auto choice = [&](int r) -> const Choice& { return choices[static_cast<std::size_t>(r)]; };
  std::vector<int> ranks;  // of the group
  for (int r = 0; r < group.size(); ++r)
    if (choice(r).color == color) ranks.push_back(r);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return choice(a).key < choice(b).key; });
  ControlGroup part{.name = std::move(name), .id = choice(ranks.front()).id, .members = {}};
  for (int r : ranks) part.members.push_back(group.members[static_cast<std::size_t>(r)]);
  part.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), group.rank) - ranks.begin());
  return part;
}

void Control::give_up_gathering(const ControlGroup& group, const Call& call) {
  const std::string who = ask(group.id, group.rounds, /*gathers=*/true, group.members);
  if (failed()) throw_failure(group.name, call);
  give_up(fmt::format("{}: {} on rank {} waited {:g} s: {}", group.name, to_string(call), rank(),
                      std::chrono::duration<double>(options_.timeout).count(), who));
}

std::string Control::who_did_not_come(const ControlGroup& group, std::span<const int> ranks, std::uint64_t number) {
  return ask(group.id, number, /*gathers=*/false, ranks);
}

std::string Control::ask(std::uint64_t group, std::uint64_t number, bool gathers, std::span<const int> ranks) {
  Packer question;
  question.put(group).put(number).put(static_cast<std::uint8_t>(gathers));
  const auto others =
      static_cast<std::uint32_t>(std::count_if(ranks.begin(), ranks.end(), [&](int r) { return r != rank(); }));
  question.put(others);
  for (const int r : ranks)
    if (r != rank()) question.put(static_cast<std::int32_t>(r));
  {
    const std::lock_guard lock(mutex_);
    answer_.reset();
  }
  post(FrameKind::ask, question);
  sleep_for(time_to_answer, [&] { return answer_.has_value() || failed_.load(); });
  const std::lock_guard lock(mutex_);
  return answer_.value_or("rank 0 does not say who did not come");
}

void Control::note_call(ControlGroup& group, const Call& call) {
  if (call.kind != CallKind::exchange) ++group.calls;  // which only the ranks concerned make
  const std::lock_guard lock(doing_mutex_);
  const auto found =
      std::find_if(calls_.begin(), calls_.end(), [&](const auto& known) { return known.first == group.id; });
  if (found == calls_.end())
    calls_.emplace_back(group.id, group.calls);
  else
    found->second = group.calls;
  doing_group_ = group.name;
  doing_.call = call;
  doing_.inside = false;
  ++doing_.calls;
}

void Control::note_wait(const ControlGroup& group, const Call& call) {
  const std::lock_guard lock(doing_mutex_);
  if (call.kind == CallKind::barrier || call.kind == CallKind::split) ++doing_.calls;
  doing_group_ = group.name;
  doing_.call = call;
  doing_.inside = true;
}

void Control::note_return() {
  const std::lock_guard lock(doing_mutex_);
  doing_.inside = false;
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
  if (failure.rank == rank() && !failure.lost) throw CommError(failure.reason);  // which names its place
  const std::string why =
      failure.lost ? failure.reason : fmt::format("rank {} failed: {}", failure.rank, failure.reason);
  const std::string message = fmt::format("{}: {} on rank {} ended because {}", group, to_string(call), rank(), why);
  if (failure.lost && options_.lost_is_an_error && (rank() == 0 || failure.rank == 0)) throw CommError(message);
  throw CommAborted(message);
}

void Control::abort(std::string_view reason) noexcept { fail_with(reason, /*unwinds=*/true); }

void Control::fail_with(std::string_view reason, bool unwinds) noexcept {
  const std::string_view some = reason.substr(0, most_reason);
  {
    const std::lock_guard lock(mutex_);
    if (!own_fault_.empty()) return;  // the first counts
    own_fault_ = some;
    unwinds_ = unwinds;
    if (!failed_) {
      failure_ = {.rank = rank(), .lost = false, .reason = own_fault_};
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

std::vector<std::string> Control::leave(const std::string& fault, bool work_failed) {
  if (!fault.empty()) abort(fault);
  {
    const std::lock_guard lock(mutex_);
    has_left_ = true;
  }
  Packer bye;
  bye.put(static_cast<std::uint8_t>(work_failed));
  post(FrameKind::bye, bye);
  sleep_for(Clock::duration::max(), [&] { return ended_; });
  const std::lock_guard lock(mutex_);
  return lines_of(to_tell_);
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

}  // namespace tera::nccl
