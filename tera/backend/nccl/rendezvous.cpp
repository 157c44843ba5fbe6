#include "tera/backend/nccl/rendezvous.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <thread>

#include "tera/base/error.h"
#include "tera/base/hash.h"
#include "tera/base/joined.h"

namespace tera::nccl {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t version = 2;        // of everything that frames hold
constexpr std::size_t most_strangers = 64;  // that have connected and said nothing, beside the ranks
constexpr auto between_attempts = 100ms;
constexpr std::size_t most_hello = 1024;

struct Hello {
  std::uint32_t version = 0;
  std::int32_t size = 0, rank = 0, zero = 0;
  std::uint64_t job = 0;
};

std::string place(const Meeting& meeting, int port) {
  return meeting.host.find(':') == std::string::npos ? fmt::format("{}:{}", meeting.host, port)
                                                     : fmt::format("[{}]:{}", meeting.host, port);
}

// Rank 0 while the others come.
class Reception {
 public:
  Reception(const Attendance& attendance, Listener listener)
      : attendance_(attendance),
        listener_(std::move(listener)),
        links_(static_cast<std::size_t>(attendance.size)),
        last_there_(links_.size()) {}

  // When they cannot all come, those who have are told why.
  std::vector<Link> receive_all() {
    try {
      wait_for_all();
    } catch (const UserError& error) {
      Packer text;
      text.put_text(error.what());
      for (Link& link : links_) {
        link.send(FrameKind::refused, text.bytes());
        link.pump();
      }
      throw;
    }
    for (Link& link : links_) {
      link.send(FrameKind::welcome);
      link.pump();
    }
    return std::move(links_);
  }

 private:
  struct Guest {
    Link link;
    std::string from;
    Clock::time_point until;
  };

  void wait_for_all() {
    const auto deadline = Clock::now() + attendance_.timeout;
    while (!all_are_here()) {
      wait_for(listener_.socket.get(), /*write=*/false, std::min(deadline, Clock::now() + 20ms));
      let_in();
      listen_to_guests();
      if (Clock::now() >= deadline) fail_without_all();
      for (const int rank : gone())
        if (Clock::now() - last_there(rank) > attendance_.time_to_return) fail_without(rank);
    }
  }

  bool here(int rank) const { return links_[static_cast<std::size_t>(rank)].open(); }
  Clock::time_point& last_there(int rank) { return last_there_[static_cast<std::size_t>(rank)]; }
  std::vector<int> gone() {
    std::vector<int> ranks;
    for (int rank = 1; rank < attendance_.size; ++rank)
      if (!here(rank) && last_there(rank) != Clock::time_point{}) ranks.push_back(rank);
    return ranks;
  }
  bool all_are_here() {
    bool all = true;
    for (int rank = 1; rank < attendance_.size; ++rank) {
      links_[static_cast<std::size_t>(rank)].pump();  // notices when it has gone again
      if (here(rank)) last_there(rank) = Clock::now();
      all = all && here(rank);
    }
    return all;
  }

  void let_in() {
    for (;;) {
      Accepted accepted = accept_one(listener_);
      if (!accepted.refusal.empty()) return make_room(accepted.refusal);
      if (!accepted.socket) return;
      if (guests_.size() >= most_strangers + links_.size()) forget_oldest();
      guests_.push_back({Link(std::move(accepted.socket), most_hello), std::move(accepted.from),
                         Clock::now() + attendance_.time_to_say_hello});
    }
  }

  // Somebody waits at the door and cannot be let in: there are no descriptors left, or no memory.
  void make_room(const std::string& why) {
    remark_ =
        fmt::format("no more connections can be made: {}; `ulimit -n` says how many files a process may open", why);
    if (!guests_.empty()) return forget_oldest();
    std::this_thread::sleep_for(between_attempts);
  }

  void forget_oldest() { guests_.erase(guests_.begin()); }  // who has said nothing for longest

  void listen_to_guests() {
    for (Guest& guest : guests_) {
      guest.link.pump();
      if (const auto frame = guest.link.take()) seat(guest, *frame);
      if (Clock::now() >= guest.until) guest.link.close();
    }
    std::erase_if(guests_, [](const Guest& guest) { return !guest.link.open(); });
  }

  void seat(Guest& guest, const Frame& frame) {
    if (frame.kind != FrameKind::hello || frame.payload.size() != sizeof(Hello)) return guest.link.close();
    const auto hello = Unpacker(frame.payload).get<Hello>();
    if (hello.version != version) return refuse(guest, "it is another version of this program");
    if (hello.job != hash_text(attendance_.meeting.job)) return refuse(guest, "it waits for the ranks of another job");
    if (hello.size != attendance_.size) {  // of another job, or this one cannot begin: then somebody will be missing
      remark_ = fmt::format("rank {} (from {}) was started as one of {} ranks, and rank 0 as one of {}", hello.rank,
                            guest.from, hello.size, attendance_.size);
      return refuse(guest, remark_);
    }
    if (hello.rank < 1 || hello.rank >= attendance_.size)
      return refuse(guest, fmt::format("there is no rank {} of {} to come", hello.rank, attendance_.size));
    Link& link = links_[static_cast<std::size_t>(hello.rank)];
    link.pump();  // one that was there before, in an earlier try of the same job, may have gone meanwhile
    if (link.open()) return refuse(guest, fmt::format("rank {} is there already: two were started", hello.rank));
    link = std::move(guest.link);
    guest.link = Link();
    last_there(hello.rank) = Clock::now();
    link.allow(Link::most_payload);
    link.send(FrameKind::beat);  // so it knows that it is in the right place
  }

  static void refuse(Guest& guest, const std::string& reason) {
    Packer text;
    text.put_text(reason);
    guest.link.send(FrameKind::refused, text.bytes());
    guest.link.pump();
    guest.link.close();
  }

  // "rank 3", "ranks 1, 2 and 40 more": those that never came; empty: all did.
  std::string missing() {
    std::vector<int> ranks;
    for (int rank = 1; rank < attendance_.size; ++rank)
      if (!here(rank) && last_there(rank) == Clock::time_point{}) ranks.push_back(rank);
    if (ranks.empty()) return {};
    constexpr std::size_t shown = 8;
    const auto end = std::next(ranks.begin(), static_cast<std::ptrdiff_t>(std::min(ranks.size(), shown)));
    return fmt::format("{} {}{}", ranks.size() == 1 ? "rank" : "ranks", joined(std::span(ranks.begin(), end), ", "),
                       ranks.size() > shown ? fmt::format(" and {} more", ranks.size() - shown) : "");
  }

  // One that has waited long for others gives up and is gone, too: then it is these that matter.
  [[noreturn]] void fail_without(int rank) {
    const std::string others = missing();
    fail_user(
        "rank {} of {} came to {}, but its connection was closed, as when it is killed, and it has not returned{}",
        rank, attendance_.size, place(attendance_.meeting, listener_.port),
        others.empty() ? "" : fmt::format("; {} did not come", others));
  }

  [[noreturn]] void fail_without_all() {
    const std::vector<int> lost = gone();
    const std::string others = missing();
    if (others.empty()) fail_without(lost.front());
    if (!lost.empty())
      remark_ += fmt::format("{}rank {} came, but its connection was closed, as when it is killed",
                             remark_.empty() ? "" : "; ", lost.front());
    fail_user("{} of {} did not come to {} within {:g} s{}", others, attendance_.size,
              place(attendance_.meeting, listener_.port), seconds(attendance_.timeout),
              remark_.empty() ? "" : fmt::format(" ({})", remark_));
  }

  const Attendance& attendance_;
  Listener listener_;
  std::vector<Link> links_;
  std::vector<Clock::time_point> last_there_;  // by rank; zero: it has not come
  std::vector<Guest> guests_;
  std::string remark_;  // why somebody may be missing
};

struct Asked {
  std::string why;                 // the last attempt failed
  Clock::time_point last_noted{};  // by a rank 0 that has gone; zero: there was none
};

// Who asks at a port where rank 0 listens is told so at once, and later that all have come.
std::optional<Link> ask_at(const Attendance& attendance, int port, Clock::time_point deadline, Asked& asked) {
  const Meeting& meeting = attendance.meeting;
  Socket socket = connect_once(meeting.host, port, deadline, asked.why);
  if (!socket) return std::nullopt;
  Link link(std::move(socket), most_hello);
  const Hello hello{
      .version = version, .size = attendance.size, .rank = attendance.rank, .job = hash_text(meeting.job)};
  link.send(FrameKind::hello, std::as_bytes(std::span(&hello, 1)));
  std::optional<Frame> frame = wait_for_frame(link, std::min(deadline, Clock::now() + attendance.time_to_say_hello));
  const bool noted = frame && frame->kind == FrameKind::beat;
  if (noted) {
    asked.last_noted = {};  // it is there again
    frame = wait_for_frame(link, deadline);
    if (!link.open()) asked.last_noted = Clock::now();
  }
  if (frame && frame->kind == FrameKind::welcome) {
    link.allow(Link::most_gathered);
    return link;
  }
  asked.why = !link.open() ? "the connection was closed"
              : noted      ? "it is there, but not all ranks have come"
                           : "nobody answered";
  if (frame && frame->kind == FrameKind::refused) {
    asked.why = Unpacker(frame->payload).get_text();
    if (noted || meeting.spare_ports == 0)
      fail_user("rank {} was turned away by rank 0 at {}: {}", attendance.rank, place(meeting, port), asked.why);
  }
  return std::nullopt;
}

// Tries the ports in turn, again and again: rank 0 may be started later, and others may listen at some of them. One
// that was there and has gone has less time to return.
Link reach_rank_0(const Attendance& attendance) {
  const Meeting& meeting = attendance.meeting;
  const auto deadline = Clock::now() + attendance.timeout;
  Asked asked;
  for (int turn = 0;; ++turn) {
    const int port = meeting.port + turn % (meeting.spare_ports + 1);
    if (std::optional<Link> link = ask_at(attendance, port, deadline, asked)) return std::move(*link);
    const auto now = Clock::now();
    const bool was_there = asked.last_noted != Clock::time_point{};
    if (was_there && (now - asked.last_noted > attendance.time_to_return || now >= deadline))
      fail_user(
          "rank 0 at {} had noted rank {}, but the connection was closed, as when rank 0 is killed, and it has not "
          "returned ({})",
          place(meeting, meeting.port), attendance.rank, asked.why);
    if (now >= deadline)
      fail_user("rank {} did not reach rank 0 at {} within {:g} s ({}); MASTER_ADDR and MASTER_PORT say where it is",
                attendance.rank, place(meeting, meeting.port), seconds(attendance.timeout), asked.why);
    std::this_thread::sleep_for(between_attempts);
  }
}

}  // namespace

Links meet(const Attendance& attendance) {
  std::optional<Listener> listener;
  const Meeting& meeting = attendance.meeting;
  if (attendance.rank == 0) listener = listen_at(meeting.host, meeting.port, meeting.spare_ports);
  return meet(attendance, std::move(listener));
}

Links meet(const Attendance& attendance, std::optional<Listener> listener) {
  if (attendance.rank != 0) return {.to_hub = reach_rank_0(attendance), .of_hub = {}};
  auto [own, hubs] = connected_pair();
  Links links{.to_hub = Link(std::move(own), Link::most_gathered),
              .of_hub = Reception(attendance, std::move(*listener)).receive_all()};
  links.of_hub.front() = Link(std::move(hubs), Link::most_payload);
  return links;
}

}  // namespace tera::nccl
