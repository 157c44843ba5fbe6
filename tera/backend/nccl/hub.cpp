#include "tera/backend/nccl/hub.h"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>

#include "tera/base/error.h"
#include "tera/base/signals.h"

namespace tera::nccl {
namespace {

using namespace std::chrono_literals;

constexpr auto longest_sleep = 20ms;
constexpr auto time_to_leave = 2s;  // for ranks after one has failed
constexpr auto time_to_flush = 1s;  // and to hear that it is over
constexpr int most_groups_of_a_rank = 4096;

}  // namespace

Hub::Hub(std::vector<Link> links, std::chrono::milliseconds quiet) : members_(links.size()), quiet_(quiet) {
  for (std::size_t rank = 0; rank < links.size(); ++rank) {
    members_[rank].link = std::move(links[rank]);
    members_[rank].last_heard = Clock::now();
  }
  last_look_ = Clock::now();
  thread_ = start_undisturbed([this] { run(); });
}

Hub::~Hub() {
  quit_ = true;
  thread_.join();
}

void Hub::run() {
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
    beat();
    look_for_the_silent();
  }
  tell_the_end();
}

void Hub::pump_all() {
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
    if (m.link.open() || m.has_left) continue;  // one that was closed before is noticed, too
    lose(rank, m.link.overflowed()
                   ? fmt::format("rank {} does not read what it is sent", rank)
                   : fmt::format("rank {} is gone: its connection was closed, as when it is killed", rank));
  }
}

void Hub::beat() {
  if (Clock::now() < last_beat_ + std::min<Clock::duration>(500ms, quiet_ / 6)) return;
  last_beat_ = Clock::now();
  for (Member& m : members_) m.link.send(FrameKind::beat);
}

// A hub that was stopped itself has heard nobody meanwhile: then all get their time anew.
void Hub::look_for_the_silent() {
  const auto now = Clock::now();
  const bool hub_slept = now - last_look_ > quiet_ / 2;
  last_look_ = now;
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    Member& m = member(rank);
    if (hub_slept) m.last_heard = now;
    if (!m.link.open() || m.has_left || now - m.last_heard <= quiet_) continue;
    lose(rank,
         fmt::format("rank {} has not answered for {:g} s: it is stopped, or its machine is", rank, seconds(quiet_)));
  }
}

void Hub::lose(int rank, std::string reason) {
  Member& m = member(rank);
  if (!m.lost.empty()) return;
  if (!m.doing.empty()) reason += fmt::format(" ({})", m.doing);
  m.lost = reason;
  fail_with(rank, reason);
}

// The first failure is what ends the others.
void Hub::fail_with(int rank, const std::string& reason) {
  if (failed_) return;
  failed_ = true;
  failed_at_ = Clock::now();
  Packer news;
  news.put(static_cast<std::int32_t>(rank)).put(static_cast<std::uint8_t>(!member(rank).lost.empty())).put_text(reason);
  for (Member& m : members_) m.link.send(FrameKind::failed, news.bytes());
}

void Hub::handle(int rank, const Frame& frame) {
  Member& m = member(rank);
  Unpacker payload(frame.payload);
  switch (frame.kind) {
    case FrameKind::beat: return take_beat(m, frame);
    case FrameKind::gather: return take_part(rank, frame);
    case FrameKind::ask: return answer(rank, frame);
    case FrameKind::fault:
      if (m.fault.empty()) m.fault = payload.get_text();
      return fail_with(rank, m.fault);
    case FrameKind::bye:
      m.has_left = true;
      m.doing += m.doing.empty() ? "" : ", and has ended";
      if (payload.get<std::uint8_t>() != 0) fail_with(rank, "for a reason that it did not tell");
      return;
    default: fail("a frame of kind {} is not for the hub", static_cast<int>(frame.kind));
  }
}

void Hub::take_beat(Member& m, const Frame& frame) {
  Unpacker payload(frame.payload);
  m.doing = payload.get_text();
  const auto groups = payload.get<std::uint32_t>();
  require(groups <= most_groups_of_a_rank, "{} groups of one rank", groups);
  for (std::uint32_t i = 0; i < groups; ++i) {
    const auto group = payload.get<std::uint64_t>();
    m.calls[group] = payload.get<std::uint64_t>();
  }
}

void Hub::take_part(int rank, const Frame& frame) {
  Unpacker payload(frame.payload);
  const auto group = payload.get<std::uint64_t>(), round = payload.get<std::uint64_t>();
  const auto size = payload.get<std::int32_t>(), place = payload.get<std::int32_t>();
  const auto call = payload.get<Call>();
  const bool of_first = payload.get<std::uint8_t>() != 0;
  require(size >= 1 && size <= static_cast<int>(members_.size()) && place >= 0 && place < size,
          "a part of rank {} of {} in a group", place, size);
  Gather& gather = gathers_[{group, round}];
  if (gather.parts.empty()) gather.parts.resize(static_cast<std::size_t>(size));
  require(gather.parts.size() == static_cast<std::size_t>(size), "a group has {} ranks for some and {} for others",
          size, gather.parts.size());
  Part& part = gather.parts[static_cast<std::size_t>(place)];
  require(part.rank < 0, "rank {} of a group came twice", place);
  part = {rank, call, {payload.rest().begin(), payload.rest().end()}};
  gather.of_first = gather.of_first || of_first;
  if (++gather.come == size) complete({group, round}, gather);
}

void Hub::complete(const GatherKey& key, Gather& gather) {
  const Part& first = gather.parts.front();
  const bool agree = std::all_of(gather.parts.begin(), gather.parts.end(), [&](const Part& part) {
    return part.call == first.call && (gather.of_first || part.bytes.size() == first.bytes.size());
  });
  Packer result;
  result.put(key.first).put(key.second);
  if (agree) {
    for (const Part& part : gather.parts) result.put_bytes(part.bytes);  // those of the first alone have others none
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

// Of the ranks that somebody waits for, those that are not where they are waited for; all, where nobody knows who is.
void Hub::answer(int asker, const Frame& frame) {
  Unpacker payload(frame.payload);
  const auto group = payload.get<std::uint64_t>(), number = payload.get<std::uint64_t>();
  const bool gathers = payload.get<std::uint8_t>() != 0;
  const auto count = payload.get<std::uint32_t>();
  std::vector<int> all, absent;
  const auto found = gathers_.find({group, number});
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto rank = payload.get<std::int32_t>();
    require(rank >= 0 && rank < static_cast<int>(members_.size()), "a question about rank {}", rank);
    all.push_back(rank);
    const auto came = [&](const Part& part) { return part.rank == rank; };
    const auto calls = member(rank).calls.find(group);
    const bool there =
        gathers ? found != gathers_.end() && std::any_of(found->second.parts.begin(), found->second.parts.end(), came)
                : calls != member(rank).calls.end() && calls->second >= number;
    if (!there) absent.push_back(rank);
  }
  const bool known = !absent.empty() && (gathers || number != any_call);
  if (!known) absent = all;
  std::vector<std::string> doing;
  for (int rank : absent) {
    const Member& m = member(rank);
    doing.push_back(!m.lost.empty()   ? m.lost
                    : m.doing.empty() ? fmt::format("rank {} has called nothing yet", rank)
                                      : m.doing);
  }
  Packer text;
  text.put_text(known ? did_not_come(absent, doing) : waits_for(absent, doing));
  send(asker, FrameKind::answer, text);
}

bool Hub::is_over() const {
  const bool nobody = std::none_of(members_.begin(), members_.end(), [](const Member& m) { return m.link.open(); });
  const bool all_left =
      std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.has_left || !m.lost.empty(); });
  const bool long_enough = failed_ && Clock::now() > failed_at_ + time_to_leave;
  return nobody || all_left || long_enough || (quit_ && failed_);
}

// A rank tells its own fault, unless a lower one tells the same; the first one tells of those that cannot.
std::string Hub::text_of(int rank) const {
  std::string text;
  const auto add = [&](const std::string& line) { text += (text.empty() ? "" : "\n") + line; };
  const std::string& own = members_[static_cast<std::size_t>(rank)].fault;
  const bool told = std::any_of(members_.begin(), members_.begin() + rank,
                                [&](const Member& m) { return m.fault == own && m.lost.empty(); });
  if (!own.empty() && !told) add(own);
  const auto is_here = [](const Member& m) { return m.lost.empty() && m.link.open(); };
  const auto first = std::find_if(members_.begin(), members_.end(), is_here) - members_.begin();
  if (rank == first)
    for (const Member& m : members_)
      if (!m.lost.empty()) add(m.lost);
  return text;
}

void Hub::tell_the_end() {
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    Packer text;
    text.put_text(text_of(rank));
    send(rank, FrameKind::ended, text);
  }
  // A connection that is closed before its other end has read all may take the last words with it.
  const auto has_not_heard = [](const Member& m) { return m.link.open() && m.lost.empty(); };
  for (const auto deadline = Clock::now() + time_to_flush; Clock::now() < deadline;) {
    for (Member& m : members_) m.link.pump();
    if (std::none_of(members_.begin(), members_.end(), has_not_heard)) return;
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace tera::nccl
