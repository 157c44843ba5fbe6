// The thread of a rank that talks to the coordinator.

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "tera/base/error.h"
#include "tera/comm/control/control.h"
#include "tera/comm/world.h"

namespace tera::control {
namespace {

using namespace std::chrono_literals;

constexpr auto longest_wait = 100ms;

}  // namespace

void Control::run() {
  for (;;) {
    wait_for_frames();
    {
      const std::lock_guard lock(mutex_);
      if (quit_) return;
      receive_frames();
      if (!ended_) heartbeat();
      if (!ended_) check_coordinator();
    }
    changed_.notify_all();
    report_for_the_rank();
    exit_if_stuck();
  }
}

void Control::wait_for_frames() {
  std::array<pollfd, 2> polled{};
  {
    const std::lock_guard lock(mutex_);
    polled[0] = {.fd = wake_.second.get(), .events = POLLIN, .revents = 0};
    polled[1] = {.fd = link_.descriptor(),  // poll() leaves out negative ones
                 .events = static_cast<short>(POLLIN | (link_.has_to_write() ? POLLOUT : 0)),
                 .revents = 0};
  }
  const auto sleep =
      std::min<std::chrono::milliseconds>(longest_wait, std::min(options_.heartbeat_timeout, options_.timeout) / 12);
  ::poll(polled.data(), polled.size(), static_cast<int>(std::max(sleep, 1ms).count()));
  std::array<char, 256> wakes;
  while (::recv(wake_.second.get(), wakes.data(), wakes.size(), 0) > 0) {
  }
}

// After the end the coordinator closes the connection, when all have reported.
void Control::receive_frames() {
  link_.pump();
  try {
    while (const auto frame = link_.take()) {
      last_heard_ = Clock::now();
      handle(*frame);
    }
  } catch (const Error& error) {
    link_.close();
    if (!ended_) lose_coordinator(fmt::format("rank 0 sent what cannot be understood: {}", error.what()));
  }
  released_ = ended_ && !link_.open();
  if (!ended_ && !link_.open()) lose_coordinator("rank 0 is gone: its connection was closed, as when it is killed");
}

void Control::handle(const Frame& frame) {
  Unpacker payload(frame.payload);
  switch (frame.kind) {
    case FrameKind::heartbeat: return;
    case FrameKind::gathered:
    case FrameKind::no_gather: {
      const auto group = payload.get<std::uint64_t>(), round = payload.get<std::uint64_t>();
      if (group != awaited_.group || round != awaited_.round) return;  // the rank waits for it no longer
      if (frame.kind == FrameKind::no_gather) {
        awaited_.refusal = payload.get_text();
        return;
      }
      require(payload.rest().size() == awaited_.into.size(), "{} bytes gathered where {} are awaited",
              payload.rest().size(), awaited_.into.size());
      std::copy(payload.rest().begin(), payload.rest().end(), awaited_.into.begin());
      awaited_.done = true;
      return;
    }
    case FrameKind::answer: answer_ = payload.get_text(); return;
    case FrameKind::failed: {
      Failure news{.rank = payload.get<std::int32_t>(), .lost = payload.get<std::uint8_t>() != 0, .reason = {}};
      news.reason = payload.get_text();
      if (failed_) return;  // this rank failed itself
      failure_ = std::move(news);
      failed_at_ = Clock::now();
      failed_ = true;
      return;
    }
    case FrameKind::ended:
      ended_in_order_ = payload.get<std::uint8_t>() != 0;
      kills_ = payload.get<std::uint8_t>() != 0;
      to_report_ = payload.get_text();
      ended_ = true;
      return;
    default: fail("a frame of kind {} is not for a rank", static_cast<int>(frame.kind));
  }
}

void Control::heartbeat() {
  const auto often = std::min<Clock::duration>(500ms, std::min(options_.heartbeat_timeout, options_.timeout) / 6);
  if (Clock::now() < last_heartbeat_ + often) return;
  last_heartbeat_ = Clock::now();
  news_.clear();
  const std::lock_guard lock(activity_mutex_);
  news_.put_text(activity_group_).put(activity_.call).put(activity_.calls);
  news_.put(static_cast<std::uint8_t>(activity_.inside)).put(static_cast<std::uint32_t>(calls_.size()));
  for (const auto& [group, calls] : calls_) news_.put(group).put(calls);
  link_.send(FrameKind::heartbeat, news_.bytes());
  link_.pump();
}

// A process that was stopped received nothing meanwhile, so it starts the timeout anew.
void Control::check_coordinator() {
  const auto heartbeat_timeout = std::min(options_.heartbeat_timeout, options_.timeout),
             limit = heartbeat_timeout + heartbeat_timeout / 4;  // the coordinator reports silent ranks first
  const auto now = Clock::now();
  if (now - last_check_ > heartbeat_timeout / 2) last_heard_ = now;
  last_check_ = now;
  if (now - last_heard_ > limit)
    lose_coordinator(fmt::format("rank 0 has not answered for {:g} s: it is stopped, or its machine is",
                                 std::chrono::duration<double>(limit).count()));
}

// Without the coordinator this rank decides itself what to report, and rank 1 kills the job, if it is there.
void Control::lose_coordinator(const std::string& reason) {
  link_.close();
  if (!failed_) {
    failure_ = {.rank = 0, .lost = true, .reason = reason};
    failed_at_ = Clock::now();
    failed_ = true;
  }
  to_report_ = local_fault_.empty() ? failure_.reason : local_fault_;
  kills_ = rank() == 1;
  ended_ = released_ = true;
}

// Reports a failure for a rank that takes long to leave.
void Control::report_for_the_rank() {
  std::string lines;
  {
    const std::lock_guard lock(mutex_);
    if (!failed_ || !ended_ || has_left_ || has_reported_) return;
    lines.swap(to_report_);
    has_reported_ = true;
  }
  report_lines(lines);
  post(FrameKind::reported, {});
}

void Control::exit_if_stuck() {
  std::string lines;
  {
    const std::lock_guard lock(mutex_);
    const auto shutdown_grace = unwinds_ ? options_.unwind_timeout : options_.shutdown_grace;
    if (!failed_ || !ended_ || has_left_ || Clock::now() < failed_at_ + shutdown_grace) return;
    lines = to_report_;
    if (local_fault_.empty()) lines += (lines.empty() ? "" : "\n") + exit_reason();
  }
  report_lines(lines);
  std::fflush(nullptr);
  std::_Exit(1);
}

// The launcher may see this process end first, and the messages of the others may be lost with the job.
std::string Control::exit_reason() {
  const std::string why =
      failure_.lost ? failure_.reason : fmt::format("rank {} failed: {}", failure_.rank, failure_.reason);
  const std::lock_guard lock(activity_mutex_);
  activity_.rank = rank();
  activity_.group = activity_group_;
  return fmt::format("its process is ended, as it does not end by itself ({}) since {}", to_string(activity_), why);
}

void Control::report_lines(const std::string& lines) const {
  for (const std::string& line : lines_of(lines)) report_(report_of(rank(), line));
}

}  // namespace tera::control
