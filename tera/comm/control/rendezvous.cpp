#include "tera/comm/control/rendezvous.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <thread>

#include "tera/base/error.h"
#include "tera/base/hash.h"
#include "tera/base/joined.h"

namespace tera::control {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t version = 3;     // format of the payloads of all frames
constexpr std::size_t max_pending = 64;  // connections without a hello, beside those of the ranks
constexpr auto between_attempts = 100ms;
constexpr std::size_t max_hello = 1024;

struct Hello {
  std::uint32_t version = 0;
  std::int32_t size = 0, rank = 0, zero = 0;
  std::uint64_t job = 0;
};

std::string endpoint(const RendezvousAddress& address, int port) {
  return address.host.find(':') == std::string::npos ? fmt::format("{}:{}", address.host, port)
                                                     : fmt::format("[{}]:{}", address.host, port);
}

// Rank 0's side: accepts connections until all ranks have said hello.
class RendezvousServer {
 public:
  RendezvousServer(const RendezvousOptions& options, Listener listener)
      : options_(options),
        listener_(std::move(listener)),
        links_(static_cast<std::size_t>(options.size)),
        last_seen_(links_.size()) {}

  // When not all ranks come, those that have get the reason.
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
  struct PendingConnection {
    Link link;
    std::string from;
    Clock::time_point until;
  };

  void wait_for_all() {
    const auto deadline = Clock::now() + options_.timeout;
    while (!all_are_here()) {
      wait_for(listener_.socket.get(), /*write=*/false, std::min(deadline, Clock::now() + 20ms));
      accept_pending();
      read_hellos();
      if (Clock::now() >= deadline) fail_without_all();
      for (const int rank : gone())
        if (Clock::now() - last_seen(rank) > options_.return_timeout) fail_without(rank);
    }
  }

  bool here(int rank) const { return links_[static_cast<std::size_t>(rank)].open(); }
  Clock::time_point& last_seen(int rank) { return last_seen_[static_cast<std::size_t>(rank)]; }
  std::vector<int> gone() {
    std::vector<int> ranks;
    for (int rank = 1; rank < options_.size; ++rank)
      if (!here(rank) && last_seen(rank) != Clock::time_point{}) ranks.push_back(rank);
    return ranks;
  }
  bool all_are_here() {
    bool all = true;
    for (int rank = 1; rank < options_.size; ++rank) {
      links_[static_cast<std::size_t>(rank)].pump();  // finds out whether it is still connected
      if (here(rank)) last_seen(rank) = Clock::now();
      all = all && here(rank);
    }
    return all;
  }

  void accept_pending() {
    for (;;) {
      Accepted accepted = accept_one(listener_);
      if (!accepted.refusal.empty()) return free_connection(accepted.refusal);
      if (!accepted.socket) return;
      if (pending_.size() >= max_pending + links_.size()) forget_oldest();
      pending_.push_back({Link(std::move(accepted.socket), max_hello), std::move(accepted.from),
                          Clock::now() + options_.hello_timeout});
    }
  }

  // A connection cannot be accepted for lack of descriptors or memory: closes the oldest one without a hello.
  void free_connection(const std::string& why) {
    remark_ =
        fmt::format("no more connections can be made: {}; `ulimit -n` says how many files a process may open", why);
    if (!pending_.empty()) return forget_oldest();
    std::this_thread::sleep_for(between_attempts);
  }

  void forget_oldest() { pending_.erase(pending_.begin()); }  // the one without a hello for longest

  void read_hellos() {
    for (PendingConnection& connection : pending_) {
      connection.link.pump();
      if (const auto frame = connection.link.take()) admit(connection, *frame);
      if (Clock::now() >= connection.until) connection.link.close();
    }
    std::erase_if(pending_, [](const PendingConnection& connection) { return !connection.link.open(); });
  }

  void admit(PendingConnection& connection, const Frame& frame) {
    if (frame.kind != FrameKind::hello || frame.payload.size() != sizeof(Hello)) return connection.link.close();
    const auto hello = Unpacker(frame.payload).get<Hello>();
    if (hello.version != version) return refuse(connection, "it is another version of this program");
    if (hello.job != hash_text(options_.address.job))
      return refuse(connection, "it waits for the ranks of another job");
    if (hello.size != options_.size) {  // it is of another job, or this job cannot begin
      remark_ = fmt::format("rank {} (from {}) was started as one of {} ranks, and rank 0 as one of {}", hello.rank,
                            connection.from, hello.size, options_.size);
      return refuse(connection, remark_);
    }
    if (hello.rank < 1 || hello.rank >= options_.size)
      return refuse(connection, fmt::format("there is no rank {} of {} to come", hello.rank, options_.size));
    Link& link = links_[static_cast<std::size_t>(hello.rank)];
    link.pump();  // that of an earlier attempt of the same job may be closed by now
    if (link.open()) return refuse(connection, fmt::format("rank {} is there already: two were started", hello.rank));
    link = std::move(connection.link);
    connection.link = Link();
    last_seen(hello.rank) = Clock::now();
    link.allow(Link::max_payload);
    link.send(FrameKind::heartbeat);  // an acknowledgement
  }

  static void refuse(PendingConnection& connection, const std::string& reason) {
    Packer text;
    text.put_text(reason);
    connection.link.send(FrameKind::refused, text.bytes());
    connection.link.pump();
    connection.link.close();
  }

  // "rank 3", "ranks 1, 2 and 40 more": those that never came; empty: all did.
  std::string missing() {
    std::vector<int> ranks;
    for (int rank = 1; rank < options_.size; ++rank)
      if (!here(rank) && last_seen(rank) == Clock::time_point{}) ranks.push_back(rank);
    if (ranks.empty()) return {};
    constexpr std::size_t shown = 8;
    const auto end = std::next(ranks.begin(), static_cast<std::ptrdiff_t>(std::min(ranks.size(), shown)));
    return fmt::format("{} {}{}", ranks.size() == 1 ? "rank" : "ranks", joined(std::span(ranks.begin(), end), ", "),
                       ranks.size() > shown ? fmt::format(" and {} more", ranks.size() - shown) : "");
  }

  // A rank that gave up waiting for others is gone, too; the message names those others.
  [[noreturn]] void fail_without(int rank) {
    const std::string others = missing();
    fail_user(
        "rank {} of {} came to {}, but its connection was closed, as when it is killed, and it has not returned{}",
        rank, options_.size, endpoint(options_.address, listener_.port),
        others.empty() ? "" : fmt::format("; {} did not come", others));
  }

  [[noreturn]] void fail_without_all() {
    const std::vector<int> lost = gone();
    const std::string others = missing();
    if (others.empty()) fail_without(lost.front());
    if (!lost.empty())
      remark_ += fmt::format("{}rank {} came, but its connection was closed, as when it is killed",
                             remark_.empty() ? "" : "; ", lost.front());
    fail_user("{} of {} did not come to {} within {:g} s{}", others, options_.size,
              endpoint(options_.address, listener_.port), seconds(options_.timeout),
              remark_.empty() ? "" : fmt::format(" ({})", remark_));
  }

  const RendezvousOptions& options_;
  Listener listener_;
  std::vector<Link> links_;
  std::vector<Clock::time_point> last_seen_;  // by rank; zero: it has not come
  std::vector<PendingConnection> pending_;
  std::string remark_;  // why a rank may be missing
};

struct AttemptState {
  std::string why;                        // the last attempt failed
  Clock::time_point last_acknowledged{};  // by a rank 0 that is gone; zero: by none
};

// One attempt at one port. Rank 0 acknowledges a hello at once, and welcomes when all have come.
std::optional<Link> try_port(const RendezvousOptions& options, int port, Clock::time_point deadline,
                             AttemptState& state) {
  const RendezvousAddress& address = options.address;
  Socket socket = connect_once(address.host, port, deadline, state.why);
  if (!socket) return std::nullopt;
  Link link(std::move(socket), max_hello);
  const Hello hello{.version = version, .size = options.size, .rank = options.rank, .job = hash_text(address.job)};
  link.send(FrameKind::hello, std::as_bytes(std::span(&hello, 1)));
  std::optional<Frame> frame = wait_for_frame(link, std::min(deadline, Clock::now() + options.hello_timeout));
  const bool acknowledged = frame && frame->kind == FrameKind::heartbeat;
  if (acknowledged) {
    state.last_acknowledged = {};  // rank 0 is back
    frame = wait_for_frame(link, deadline);
    if (!link.open()) state.last_acknowledged = Clock::now();
  }
  if (frame && frame->kind == FrameKind::welcome) {
    link.allow(Link::max_gathered);
    return link;
  }
  state.why = !link.open()   ? "the connection was closed"
              : acknowledged ? "it is there, but not all ranks have come"
                             : "nobody answered";
  if (frame && frame->kind == FrameKind::refused) {
    state.why = Unpacker(frame->payload).get_text();
    if (acknowledged || address.spare_ports == 0)
      fail_user("rank {} was turned away by rank 0 at {}: {}", options.rank, endpoint(address, port), state.why);
  }
  return std::nullopt;
}

// Tries the ports round robin until the deadline: rank 0 may be started later, and other programs may listen at some of
// the ports. A rank 0 that acknowledged and is gone has less time to return.
Link connect_to_rank_0(const RendezvousOptions& options) {
  const RendezvousAddress& address = options.address;
  const auto deadline = Clock::now() + options.timeout;
  AttemptState state;
  for (int attempt = 0;; ++attempt) {
    const int port = address.port + attempt % (address.spare_ports + 1);
    if (std::optional<Link> link = try_port(options, port, deadline, state)) return std::move(*link);
    const auto now = Clock::now();
    const bool was_there = state.last_acknowledged != Clock::time_point{};
    if (was_there && (now - state.last_acknowledged > options.return_timeout || now >= deadline))
      fail_user(
          "rank 0 at {} had noted rank {}, but the connection was closed, as when rank 0 is killed, and it has not "
          "returned ({})",
          endpoint(address, address.port), options.rank, state.why);
    if (now >= deadline)
      fail_user("rank {} did not reach rank 0 at {} within {:g} s ({}); {}", options.rank,
                endpoint(address, address.port), seconds(options.timeout), state.why, options.where_from);
    std::this_thread::sleep_for(between_attempts);
  }
}

}  // namespace

Links rendezvous(const RendezvousOptions& options) {
  std::optional<Listener> listener;
  const RendezvousAddress& address = options.address;
  if (options.rank == 0) listener = listen_at(address.host, address.port, address.spare_ports);
  return rendezvous(options, std::move(listener));
}

Links rendezvous(const RendezvousOptions& options, std::optional<Listener> listener) {
  if (options.rank != 0) return {.to_coordinator = connect_to_rank_0(options), .to_ranks = {}};
  auto [local, coordinators_end] = connected_pair();
  Links links{.to_coordinator = Link(std::move(local), Link::max_gathered),
              .to_ranks = RendezvousServer(options, std::move(*listener)).receive_all()};
  links.to_ranks.front() = Link(std::move(coordinators_end), Link::max_payload);
  return links;
}

}  // namespace tera::control
