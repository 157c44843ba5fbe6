// The thread of a rank that talks to the hub.

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "tera/backend/nccl/control.h"
#include "tera/base/error.h"
#include "tera/comm/world.h"

namespace tera::nccl {
namespace {

using namespace std::chrono_literals;

constexpr auto longest_wait = 100ms;

}  // namespace

void Control::run() {
  for (;;) {
    wait_for_news();
    {
      const std::lock_guard lock(mutex_);
      if (quit_) return;
      take_news();
      if (!ended_) beat();
      if (!ended_) look_for_the_hub();
    }
    news_.notify_all();
    tell_for_the_rank();
    end_if_stuck();
  }
}

void Control::wait_for_news() {
  std::array<pollfd, 2> polled{};
  {
    const std::lock_guard lock(mutex_);
    polled[0] = {.fd = wake_.second.get(), .events = POLLIN, .revents = 0};
    polled[1] = {.fd = link_.descriptor(),  // less than 0 is left out
                 .events = static_cast<short>(POLLIN | (link_.has_to_write() ? POLLOUT : 0)),
                 .revents = 0};
  }
  const auto sleep = std::min<std::chrono::milliseconds>(longest_wait, std::min(options_.quiet, options_.timeout) / 12);
  ::poll(polled.data(), polled.size(), static_cast<int>(std::max(sleep, 1ms).count()));
  std::array<char, 256> wakes;
  while (::recv(wake_.second.get(), wakes.data(), wakes.size(), 0) > 0) {
  }
}

void Control::take_news() {
  if (ended_) return;
  link_.pump();
  try {
    while (const auto frame = link_.take()) {
      last_heard_ = Clock::now();
      handle(*frame);
      if (ended_) return link_.close();
    }
  } catch (const Error& error) {
    link_.close();
    return lose_hub(fmt::format("rank 0 sent what cannot be understood: {}", error.what()));
  }
  if (!link_.open()) lose_hub("rank 0 is gone: its connection was closed, as when it is killed");
}

void Control::handle(const Frame& frame) {
  Unpacker payload(frame.payload);
  switch (frame.kind) {
    case FrameKind::beat: return;
    case FrameKind::gathered:
    case FrameKind::no_gather: {
      const auto group = payload.get<std::uint64_t>(), round = payload.get<std::uint64_t>();
      if (group != awaited_.group || round != awaited_.round) return;  // it waits no longer
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
      if (failed_) return;  // by itself
      failure_ = std::move(news);
      failed_at_ = Clock::now();
      failed_ = true;
      return;
    }
    case FrameKind::ended:
      to_tell_ = payload.get_text();
      ended_ = true;
      return;
    default: fail("a frame of kind {} is not for a rank", static_cast<int>(frame.kind));
  }
}

void Control::beat() {
  const auto often = std::min<Clock::duration>(500ms, std::min(options_.quiet, options_.timeout) / 6);
  if (Clock::now() < last_beat_ + often) return;
  last_beat_ = Clock::now();
  Packer news;
  const std::lock_guard lock(doing_mutex_);
  doing_.rank = rank();
  doing_.group = doing_group_;
  news.put_text(to_string(doing_)).put(static_cast<std::uint32_t>(calls_.size()));
  for (const auto& [group, calls] : calls_) news.put(group).put(calls);
  link_.send(FrameKind::beat, news.bytes());
  link_.pump();
}

// A process that was stopped has heard nothing meanwhile.
void Control::look_for_the_hub() {
  const auto quiet = std::min(options_.quiet, options_.timeout),
             limit = quiet + quiet / 4;  // the hub's word comes first
  const auto now = Clock::now();
  if (now - last_look_ > quiet / 2) last_heard_ = now;
  last_look_ = now;
  if (now - last_heard_ > limit)
    lose_hub(fmt::format("rank 0 has not answered for {:g} s: it is stopped, or its machine is",
                         std::chrono::duration<double>(limit).count()));
}

// Nobody else can say what to tell now.
void Control::lose_hub(const std::string& reason) {
  link_.close();
  if (!failed_) {
    failure_ = {.rank = 0, .lost = true, .reason = reason};
    failed_at_ = Clock::now();
    failed_ = true;
  }
  to_tell_ = own_fault_.empty() ? failure_.reason : own_fault_;
  ended_ = true;
}

// A rank that is long in leaving does not keep what is wrong to itself.
void Control::tell_for_the_rank() {
  std::string lines;
  {
    const std::lock_guard lock(mutex_);
    if (!failed_ || !ended_ || has_left_ || options_.lost_is_an_error) return;
    lines.swap(to_tell_);
  }
  tell(lines);
}

void Control::end_if_stuck() {
  std::string lines;
  {
    const std::lock_guard lock(mutex_);
    const auto grace = unwinds_ ? options_.time_to_unwind : options_.grace;
    if (!failed_ || !ended_ || has_left_ || Clock::now() < failed_at_ + grace) return;
    lines = to_tell_;
    if (own_fault_.empty()) lines += (lines.empty() ? "" : "\n") + why_it_is_ended();
  }
  tell(lines);
  std::fflush(nullptr);
  std::_Exit(1);
}

// Who started the ranks may see this process end first, and the others' words may be lost with the job.
std::string Control::why_it_is_ended() {
  const std::string why =
      failure_.lost ? failure_.reason : fmt::format("rank {} failed: {}", failure_.rank, failure_.reason);
  const std::lock_guard lock(doing_mutex_);
  doing_.rank = rank();
  doing_.group = doing_group_;
  return fmt::format("its process is ended, as it does not end by itself ({}) since {}", to_string(doing_), why);
}

void Control::tell(const std::string& lines) const {
  for (const std::string& line : lines_of(lines)) tell_(told_by(rank(), line));
}

}  // namespace tera::nccl
