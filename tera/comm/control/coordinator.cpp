#include "tera/comm/control/coordinator.h"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>

#include "tera/base/error.h"
#include "tera/base/signals.h"

namespace tera::control {
namespace {

using namespace std::chrono_literals;

constexpr auto longest_sleep = 20ms;
constexpr auto time_to_leave = 2s;   // for ranks after one has failed
constexpr auto time_to_report = 1s;  // for ranks that are to report lines
constexpr int max_groups_of_a_rank = 4096;

}  // namespace

Coordinator::Coordinator(std::vector<Link> links, std::chrono::milliseconds heartbeat_timeout)
    : members_(links.size()), heartbeat_timeout_(heartbeat_timeout) {
  for (std::size_t rank = 0; rank < links.size(); ++rank) {
    members_[rank].link = std::move(links[rank]);
    members_[rank].last_heard = Clock::now();
    members_[rank].calls.reserve(expected_groups);
  }
  last_check_ = Clock::now();
  thread_ = start_thread_with_signals_blocked([this] { run(); });
}

Coordinator::~Coordinator() {
  quit_ = true;
  thread_.join();
}

void Coordinator::run() {
  std::vector<pollfd> polled;
  while (!is_over()) {
    polled.clear();
    for (const Member& m : members_)
      if (m.link.open())
        polled.push_back({.fd = m.link.descriptor(),
                          .events = static_cast<short>(POLLIN | (m.link.has_to_write() ? POLLOUT : 0)),
                          .revents = 0});
    ::poll(polled.data(), polled.size(), static_cast<int>(std::chrono::milliseconds(longest_sleep).count()));
    pump_all();
    heartbeat();
    check_heartbeats();
  }
  report_the_end();
}

void Coordinator::pump_all() {
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    Member& m = member(rank);
    m.link.pump();
    try {
      while (const auto frame = m.link.take()) {
        m.last_heard = Clock::now();
        handle(rank, *frame);
      }
    } catch (const Error& error) {
      m.link.close();
      lose(rank, fmt::format("rank {} sent what cannot be understood: {}", rank, error.what()));
    }
    if (m.link.open()) continue;  // a connection that was closed before counts, too
    lose(rank, m.link.overflowed()
                   ? fmt::format("rank {} does not read what it is sent", rank)
                   : fmt::format("rank {} is gone: its connection was closed, as when it is killed", rank));
  }
}

void Coordinator::heartbeat() {
  if (Clock::now() < last_heartbeat_ + std::min<Clock::duration>(500ms, heartbeat_timeout_ / 6)) return;
  last_heartbeat_ = Clock::now();
  for (Member& m : members_) m.link.send(FrameKind::heartbeat);
}

// A coordinator that was stopped itself received no heartbeats meanwhile: then the timeouts of all start anew.
void Coordinator::check_heartbeats() {
  const auto now = Clock::now();
  const bool coordinator_slept = now - last_check_ > heartbeat_timeout_ / 2;
  last_check_ = now;
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    Member& m = member(rank);
    if (coordinator_slept) m.last_heard = now;
    if (!m.link.open() || now - m.last_heard <= heartbeat_timeout_) continue;
    lose(rank, fmt::format("rank {} has not answered for {:g} s: it is stopped, or its machine is", rank,
                           seconds(heartbeat_timeout_)));
  }
}

// The others do not need a rank whose work is over: they go on, but MPI cannot end in order without it.
void Coordinator::lose(int rank, std::string reason) {
  Member& m = member(rank);
  if (!m.lost.empty()) return;
  if (m.has_left) reason += ", after its work was over";
  if (!m.group.empty()) reason += fmt::format(" ({})", activity_of(rank));
  m.lost = reason;
  if (!m.has_left) fail_with(rank, reason);
}

// Only the first failure is reported to the ranks.
void Coordinator::fail_with(int rank, const std::string& reason) {
  if (failed_) return;
  failed_ = true;
  failed_at_ = Clock::now();
  Packer news;
  news.put(static_cast<std::int32_t>(rank)).put(static_cast<std::uint8_t>(!member(rank).lost.empty())).put_text(reason);
  for (Member& m : members_) m.link.send(FrameKind::failed, news.bytes());
}

void Coordinator::handle(int rank, const Frame& frame) {
  Member& m = member(rank);
  Unpacker payload(frame.payload);
  switch (frame.kind) {
    case FrameKind::heartbeat: return take_heartbeat(m, frame);
    case FrameKind::gather: return take_contribution(rank, frame);
    case FrameKind::query: return answer(rank, frame);
    case FrameKind::fault:
      if (m.fault.empty()) m.fault = payload.get_text();
      return fail_with(rank, m.fault);
    case FrameKind::bye:
      m.has_left = true;
      m.transfers_over = payload.get<std::uint8_t>() != 0;
      if (payload.get<std::uint8_t>() != 0) fail_with(rank, "for a reason that it did not tell");
      return;
    case FrameKind::reported: m.has_reported = true; return;
    default: fail("a frame of kind {} is not for the coordinator", static_cast<int>(frame.kind));
  }
}

void Coordinator::take_heartbeat(Member& m, const Frame& frame) {
  Unpacker payload(frame.payload);
  m.group = payload.get_text();
  m.activity.call = payload.get<Call>();
  m.activity.calls = payload.get<std::uint64_t>();
  m.activity.inside = payload.get<std::uint8_t>() != 0;
  const auto groups = payload.get<std::uint32_t>();
  require(groups <= max_groups_of_a_rank, "{} groups of one rank", groups);
  m.calls.clear();  // its memory is kept: a heartbeat takes none
  for (std::uint32_t i = 0; i < groups; ++i) {
    const auto group = payload.get<std::uint64_t>();
    m.calls.emplace_back(group, payload.get<std::uint64_t>());
  }
}

void Coordinator::take_contribution(int rank, const Frame& frame) {
  Unpacker payload(frame.payload);
  const auto group = payload.get<std::uint64_t>(), round = payload.get<std::uint64_t>();
  const auto size = payload.get<std::int32_t>(), group_rank = payload.get<std::int32_t>();
  const auto call = payload.get<Call>();
  const bool from_first = payload.get<std::uint8_t>() != 0;
  require(size >= 1 && size <= static_cast<int>(members_.size()) && group_rank >= 0 && group_rank < size,
          "a part of rank {} of {} in a group", group_rank, size);
  Gather& gather = gathers_[{group, round}];
  if (gather.parts.empty()) gather.parts.resize(static_cast<std::size_t>(size));
  require(gather.parts.size() == static_cast<std::size_t>(size), "a group has {} ranks for some and {} for others",
          size, gather.parts.size());
  Part& part = gather.parts[static_cast<std::size_t>(group_rank)];
  require(part.rank < 0, "rank {} of a group came twice", group_rank);
  part = {rank, call, {payload.rest().begin(), payload.rest().end()}};
  gather.from_first = gather.from_first || from_first;
  if (++gather.come == size) complete({group, round}, gather);
}

void Coordinator::complete(const GatherKey& key, Gather& gather) {
  const Part& first = gather.parts.front();
  const bool agree = std::all_of(gather.parts.begin(), gather.parts.end(), [&](const Part& part) {
    return part.call == first.call && (gather.from_first || part.bytes.size() == first.bytes.size());
  });
  Packer result;
  result.put(key.first).put(key.second);
  if (agree) {
    for (const Part& part : gather.parts)
      result.put_bytes(part.bytes);  // in a broadcast, only the first part has bytes
  } else {
    std::string text = "the ranks make different calls";
    for (const Part& part : gather.parts)
      text += fmt::format("{} rank {}: {}", &part == &first ? ":" : ";", part.rank, to_string(part.call));
    result.put_text(text);
  }
  const Link::Bytes frame = Link::make_frame(agree ? FrameKind::gathered : FrameKind::no_gather, result.bytes());
  for (const Part& part : gather.parts) member(part.rank).link.send(frame);
  gathers_.erase(key);
}

bool Coordinator::has_not_come(int rank, const Query& query) {
  if (query.by == AbsentBy::asker) return true;
  if (query.by == AbsentBy::call) {
    const auto& made = member(rank).calls;
    const auto calls = std::ranges::find(made, query.group, &std::pair<std::uint64_t, std::uint64_t>::first);
    return calls == made.end() || calls->second < query.number;
  }
  const auto found = gathers_.find({query.group, query.number});
  return found == gathers_.end() || std::none_of(found->second.parts.begin(), found->second.parts.end(),
                                                 [&](const Part& part) { return part.rank == rank; });
}

std::string Coordinator::activity_of(int rank) {
  RankActivity activity = member(rank).activity;
  activity.rank = rank;
  activity.group = member(rank).group;
  return to_string(activity);
}

// What a rank does, and why it may not come.
std::string Coordinator::describe(int rank) {
  const Member& m = member(rank);
  if (!m.lost.empty()) return m.lost;
  std::string text = activity_of(rank);
  const std::chrono::duration<double> silent = Clock::now() - m.last_heard;
  if (m.has_left)
    text += ", and has ended";
  else if (silent > heartbeat_timeout_ / 2)
    text += fmt::format(", and has not answered for {:.1f} s", silent.count());
  return text;
}

// Answers which of the ranks that are waited for have not made the call; all of them, where that is not known.
void Coordinator::answer(int asker, const Frame& frame) {
  Unpacker payload(frame.payload);
  const auto query = payload.get<Query>();
  std::vector<int> all, absent;
  for (auto count = payload.get<std::uint32_t>(); count > 0; --count) {
    const auto rank = payload.get<std::int32_t>();
    require(rank >= 0 && rank < static_cast<int>(members_.size()), "a question about rank {}", rank);
    all.push_back(rank);
    if (has_not_come(rank, query)) absent.push_back(rank);
  }
  const bool known = !absent.empty() && (query.by != AbsentBy::call || query.number != any_call);
  if (!known) absent = all;
  std::vector<std::string> activities;
  for (int rank : absent) activities.push_back(describe(rank));
  Packer text;
  text.put_text(known ? describe_absent(absent, activities) : describe_awaited(absent, activities));
  send(asker, FrameKind::answer, text);
}

bool Coordinator::is_over() const {
  const bool nobody = std::none_of(members_.begin(), members_.end(), [](const Member& m) { return m.link.open(); });
  const bool all_left =
      std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.has_left || !m.lost.empty(); });
  const bool long_enough = failed_ && Clock::now() > failed_at_ + time_to_leave;
  return nobody || all_left || long_enough || (quit_ && failed_);
}

// A rank reports its own fault, unless a lower one reports the same; the first rank reports those that were lost. After
// a failure, ranks that were done are often killed by their launcher, which is no news.
std::string Coordinator::final_report_of(int rank, int first) const {
  std::string text;
  const auto add = [&](const std::string& line) { text += (text.empty() ? "" : "\n") + line; };
  const std::string& local = members_[static_cast<std::size_t>(rank)].fault;
  const bool reported = std::any_of(members_.begin(), members_.begin() + rank,
                                    [&](const Member& m) { return m.fault == local && m.lost.empty(); });
  if (!local.empty() && !reported) add(local);
  if (rank == first)
    for (const Member& m : members_)
      if (!m.lost.empty() && (!m.has_left || !failed_)) add(m.lost);
  return text;
}

// The first rank that is here and, where that is asked for, has left; as many as there are ranks: none.
int Coordinator::first_here(bool has_left) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& m) { return is_here(m) && (m.has_left || !has_left); });
  return static_cast<int>(found - members_.begin());
}

// A rank that has not left may be stuck, and hears too late that it is to kill the job.
void Coordinator::report_the_end() {
  const int first = first_here(/*has_left=*/false), first_left = first_here(/*has_left=*/true),
            killer = first_left < static_cast<int>(members_.size()) ? first_left : first;
  const bool in_order = std::all_of(members_.begin(), members_.end(),
                                    [&](const Member& m) { return is_here(m) && m.has_left && m.transfers_over; });
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    Packer end;
    end.put(static_cast<std::uint8_t>(in_order)).put(static_cast<std::uint8_t>(rank == killer));
    end.put_text(final_report_of(rank, first));
    send(rank, FrameKind::ended, end);
  }
  await_reports();
  for (Member& m : members_) m.link.close();
}

void Coordinator::await_reports() {
  const auto is_to_report = [](const Member& m) { return m.link.open() && m.lost.empty() && !m.has_reported; };
  for (const auto deadline = Clock::now() + time_to_report; Clock::now() < deadline;) {
    for (Member& m : members_) {
      m.link.pump();
      while (const auto frame = m.link.take()) m.has_reported = m.has_reported || frame->kind == FrameKind::reported;
    }
    if (std::none_of(members_.begin(), members_.end(), is_to_report)) return;
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace tera::control
