// How processes meet without MPI: those that belong together do, and whoever else comes is turned away and holds nobody
// up.

#include "tera/backend/nccl/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ctime>
#include <functional>
#include <future>
#include <thread>

#include "tera/base/error.h"
#include "tera/base/hash.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using namespace nccl;
using namespace std::chrono_literals;

constexpr auto patience = 10s;

// Rank 0 listens at a port of its own choice; the others are told.
struct Place {
  explicit Place(int ranks, const std::string& host = "127.0.0.1") : listener(listen_at(host, 0, 0)), size(ranks) {
    meeting = {.host = host, .port = listener->port, .spare_ports = 0, .job = "a job"};
  }
  Attendance of(int rank, std::chrono::milliseconds timeout = patience) const {
    return {.meeting = meeting, .rank = rank, .size = size, .timeout = timeout};
  }
  std::optional<Listener> listener;
  Meeting meeting;
  int size;
};

// What a thread that meets ends with: the message of its UserError, or nothing.
std::future<std::string> in_background(const std::function<void()>& work) {
  return std::async(std::launch::async, [work]() -> std::string {
    try {
      work();
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  });
}

void expect_connected(Links& hub, Links& rank, std::size_t number) {
  rank.to_hub.send(FrameKind::beat);
  rank.to_hub.pump();
  const auto frame = wait_for_frame(hub.of_hub[number], Clock::now() + patience);
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->kind, FrameKind::beat);
}

void expect_meeting(const std::string& host) {
  Place place(3, host);
  Links links[3];
  std::vector<std::future<std::string>> others;
  for (int rank : {2, 1}) others.push_back(in_background([&, rank] { links[rank] = meet(place.of(rank)); }));
  links[0] = meet(place.of(0), std::move(place.listener));
  for (auto& other : others) EXPECT_EQ(other.get(), "");
  ASSERT_EQ(links[0].of_hub.size(), 3u);
  for (std::size_t rank = 0; rank < 3; ++rank) expect_connected(links[0], links[rank], rank);
  std::string why;  // nobody listens any more
  EXPECT_FALSE(connect_once(host, place.meeting.port, Clock::now() + 1s, why));
}

bool has_ipv6() {
  try {
    listen_at("::1", 0, 0);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

TEST(Rendezvous, RanksMeet) {
  expect_meeting("127.0.0.1");
  expect_meeting("localhost");
}

TEST(Rendezvous, OverIPv6) {
  if (!has_ipv6()) GTEST_SKIP() << "this machine has no IPv6";
  expect_meeting("::1");
}

TEST(Rendezvous, RankZeroMayComeLast) {
  const int port = listen_at("127.0.0.1", 0, 0).port;
  const Meeting meeting{.host = "127.0.0.1", .port = port};
  auto other = in_background([&] { meet({.meeting = meeting, .rank = 1, .size = 2, .timeout = patience}); });
  std::this_thread::sleep_for(300ms);
  meet({.meeting = meeting, .rank = 0, .size = 2, .timeout = patience});
  EXPECT_EQ(other.get(), "");
}

// A launcher that listens at the port itself: the next one that is free is taken, and found.
TEST(Rendezvous, AnotherPortWhereTheFirstIsTaken) {
  const Listener taken = listen_at("127.0.0.1", 0, 0);
  if (taken.port > 65000) GTEST_SKIP() << "no room behind port " << taken.port;
  const Meeting meeting{.host = "127.0.0.1", .port = taken.port, .spare_ports = 8};
  auto other = in_background(
      [&] { meet({.meeting = meeting, .rank = 1, .size = 2, .timeout = 30s, .time_to_say_hello = 500ms}); });
  meet({.meeting = meeting, .rank = 0, .size = 2, .timeout = 30s});
  EXPECT_EQ(other.get(), "");
  const std::string message = message_of<UserError>([&] { listen_at("127.0.0.1", taken.port, 0); });
  EXPECT_TRUE(contains(message, "Address already in use")) << message;
  EXPECT_TRUE(contains(message, std::to_string(taken.port))) << message;
}

TEST(Rendezvous, WhoDoesNotComeIsNamed) {
  Place place(4);
  auto other = in_background([&] { meet(place.of(2)); });
  const std::string message = message_of<UserError>([&] { meet(place.of(0, 700ms), std::move(place.listener)); });
  EXPECT_TRUE(contains(message, "ranks 1, 3 of 4 did not come to 127.0.0.1:")) << message;
  EXPECT_TRUE(contains(other.get(), "ranks 1, 3 of 4 did not come"));
}

TEST(Rendezvous, ARankZeroThatIsNotThere) {
  const int port = listen_at("127.0.0.1", 0, 0).port;
  const Attendance attendance{.meeting = {.host = "127.0.0.1", .port = port}, .rank = 3, .size = 4, .timeout = 300ms};
  const std::string message = message_of<UserError>([&] { meet(attendance); });
  EXPECT_TRUE(contains(message, "rank 3 did not reach rank 0 at 127.0.0.1:")) << message;
  EXPECT_TRUE(contains(message, "Connection refused")) << message;
  Attendance nowhere = attendance;
  nowhere.meeting.host = "no.such.host.invalid";
  EXPECT_TRUE(contains(message_of<UserError>([&] { meet(nowhere); }), "no.such.host.invalid"));
}

// Whoever says so ends at once; rank 0 goes on, as it may have been somebody else's rank, and says so if one is
// missing.
TEST(Rendezvous, DifferentSizes) {
  Place place(2);
  Attendance other = place.of(1);
  other.size = 4;
  std::optional<Listener> listener = std::move(place.listener);
  Links zero, one;
  auto all = in_background([&] { zero = meet(place.of(0), std::move(listener)); });
  const std::string words = "rank 1 (from 127.0.0.1) was started as one of 4 ranks, and rank 0 as one of 2";
  const std::string ended = message_of<UserError>([&] { meet(other); });
  EXPECT_TRUE(contains(ended, words)) << ended;
  one = meet(place.of(1));
  EXPECT_EQ(all.get(), "");

  Place again(2);
  other.meeting = again.meeting;
  auto refused = in_background([&] { meet(other); });
  const std::string message = message_of<UserError>([&] { meet(again.of(0, 700ms), std::move(again.listener)); });
  EXPECT_TRUE(contains(message, "rank 1 of 2 did not come to 127.0.0.1:")) << message;
  EXPECT_TRUE(contains(message, words)) << message;
  EXPECT_TRUE(contains(refused.get(), words));
}

// Those who are no ranks of this job are refused, and the others meet all the same.
TEST(Rendezvous, WhoDoesNotBelongIsTurnedAway) {
  Place place(3);
  Links first, second, zero;
  auto one = in_background([&] { first = meet(place.of(1)); });
  auto all = in_background([&] { zero = meet(place.of(0), std::move(place.listener)); });
  Attendance stranger = place.of(2);
  stranger.meeting.job = "another job";
  EXPECT_TRUE(contains(message_of<UserError>([&] { meet(stranger); }), "waits for the ranks of another job"));
  Attendance far = place.of(2);
  far.rank = 7;
  EXPECT_TRUE(contains(message_of<UserError>([&] { meet(far); }), "there is no rank 7 of 3 to come"));
  std::this_thread::sleep_for(300ms);  // rank 1 is there by now
  EXPECT_TRUE(contains(message_of<UserError>([&] { meet(place.of(1)); }), "rank 1 is there already"));
  second = meet(place.of(2));
  EXPECT_EQ(one.get(), "");
  EXPECT_EQ(all.get(), "");
}

Socket connect(const Place& place) {
  std::string why;
  Socket socket = connect_once("127.0.0.1", place.meeting.port, Clock::now() + patience, why);
  EXPECT_TRUE(socket) << why;
  return socket;
}

void say(const Socket& socket, std::string_view bytes) {
  EXPECT_GE(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
}

// Who comes as rank 1 of two or more, as far as it can be seen; it has not been answered.
Link come_as_rank_1(const Place& place) {
  struct {
    std::uint32_t version = 2;
    std::int32_t size, rank = 1, zero = 0;
    std::uint64_t job = hash_text("a job");
  } const hello{.size = place.size};
  Link link(connect(place), 1024);
  link.send(FrameKind::hello, std::as_bytes(std::span(&hello, 1)));
  link.pump();
  return link;
}

bool is_noted(Link& link) {
  const auto answer = wait_for_frame(link, Clock::now() + patience);
  return answer && answer->kind == FrameKind::beat;
}

// A rank of an earlier try of the same job, which is ended when the next one starts: its seat is free at once.
TEST(Rendezvous, WhoHasGoneLeavesItsSeat) {
  Place place(3);
  Links zero, one;
  const Place& where = place;
  std::optional<Listener> listener = std::move(place.listener);
  auto all = in_background([&] { zero = meet(where.of(0), std::move(listener)); });
  for (int attempt = 0; attempt < 50; ++attempt) {
    Link link = come_as_rank_1(where);
    ASSERT_TRUE(is_noted(link)) << "attempt " << attempt << ": it was turned away";
  }
  auto last = in_background([&] { one = meet(where.of(1)); });
  const Links two = meet(where.of(2));
  EXPECT_EQ(last.get(), "");
  EXPECT_EQ(all.get(), "");
}

// A rank that is killed while the others come does not hold them up for as long as one that is yet to come.
TEST(Rendezvous, WhoCameAndHasGoneIsNamedSoon) {
  Place place(4);
  Attendance zero = place.of(0);
  zero.time_to_return = 500ms;
  const Place& where = place;
  std::optional<Listener> listener = std::move(place.listener);
  const auto begin = Clock::now();
  auto all = in_background([&] { meet(zero, std::move(listener)); });
  auto other = in_background([&] { meet(where.of(2)); });
  {
    Link killed = come_as_rank_1(where);
    ASSERT_TRUE(is_noted(killed));
  }
  const std::string words = "rank 1 of 4 came to 127.0.0.1:" + std::to_string(where.meeting.port) +
                            ", but its connection was closed, as when it is killed, and it has not returned";
  const std::string message = all.get(), others = other.get();
  EXPECT_TRUE(contains(message, words + "; rank 3 did not come")) << message;
  EXPECT_TRUE(contains(others, words)) << others;
  EXPECT_LT(Clock::now() - begin, 5s);
  EXPECT_GE(Clock::now() - begin, 500ms);
}

// When it is too late for all, those who came and have gone are not said never to have come.
TEST(Rendezvous, WhoHasGoneIsNotSaidNotToHaveCome) {
  Place place(3);
  const Place& where = place;
  std::optional<Listener> listener = std::move(place.listener);
  auto all = in_background([&] { meet(where.of(0, 700ms), std::move(listener)); });
  {
    Link killed = come_as_rank_1(where);
    ASSERT_TRUE(is_noted(killed));
  }
  const std::string message = all.get();
  EXPECT_TRUE(contains(message, "rank 2 of 3 did not come to 127.0.0.1:")) << message;
  EXPECT_TRUE(contains(message, "(rank 1 came, but its connection was closed, as when it is killed)")) << message;
}

// Rank 0 as far as others see it: notes the one that comes, and is killed.
void note_one_and_go(const Listener& listener) {
  ASSERT_TRUE(wait_for(listener.socket.get(), /*write=*/false, Clock::now() + patience));
  Link link(accept_one(listener).socket, 1024);
  ASSERT_TRUE(wait_for_frame(link, Clock::now() + patience).has_value());
  link.send(FrameKind::beat);
  link.pump();
}

// A rank 0 that is not there yet is waited for, one that was there and has gone is not for long.
TEST(Rendezvous, ARankZeroThatHasGoneIsNamedSoon) {
  Place place(2);
  Attendance one = place.of(1);
  one.time_to_return = 500ms;
  auto other = in_background([&] { meet(one); });
  note_one_and_go(*place.listener);
  place.listener.reset();
  const auto begin = Clock::now();
  const std::string message = other.get();
  EXPECT_TRUE(contains(message, "rank 0 at 127.0.0.1:" + std::to_string(one.meeting.port) +
                                    " had noted rank 1, but the connection was closed, as when rank 0 is killed, and "
                                    "it has not returned"))
      << message;
  EXPECT_LT(Clock::now() - begin, 5s);
}

// One that was killed and is back is not said to be gone, however long it then waits.
TEST(Rendezvous, ARankZeroThatIsBackWaitsForOthers) {
  Place place(3);
  Attendance one = place.of(1, 1500ms);
  one.time_to_return = 500ms;
  auto other = in_background([&] { meet(one); });
  note_one_and_go(*place.listener);
  std::optional<Listener> listener = std::move(place.listener);
  auto all = in_background([&] { meet(place.of(0, 2s), std::move(listener)); });
  const std::string message = other.get();
  EXPECT_TRUE(contains(message, "rank 1 did not reach rank 0 at")) << message;
  EXPECT_TRUE(contains(message, "(it is there, but not all ranks have come)")) << message;
  EXPECT_TRUE(contains(all.get(), "rank 2 of 3 did not come"));
}

TEST(Rendezvous, ARankZeroThatWaitsForOthers) {
  Place place(3);
  const Place& where = place;
  std::optional<Listener> listener = std::move(place.listener);
  auto all = in_background([&] { meet(where.of(0, 1s), std::move(listener)); });
  const std::string message = message_of<UserError>([&] { meet(where.of(1, 300ms)); });
  EXPECT_TRUE(contains(message, "rank 1 did not reach rank 0 at")) << message;
  EXPECT_TRUE(contains(message, "(it is there, but not all ranks have come)")) << message;
  EXPECT_TRUE(contains(all.get(), "rank 2 of 3 did not come"));
}

TEST(Rendezvous, ARankZeroMayReturnOrComeLate) {
  Place place(2);
  Attendance one = place.of(1);
  one.time_to_return = 3s;
  auto other = in_background([&] { meet(one); });
  note_one_and_go(*place.listener);
  place.listener.reset();
  std::this_thread::sleep_for(200ms);
  meet(place.of(0));
  EXPECT_EQ(other.get(), "");

  one.time_to_return = 50ms;
  auto again = in_background([&] { meet(one); });
  std::this_thread::sleep_for(500ms);
  meet(place.of(0));
  EXPECT_EQ(again.get(), "");
}

// Frames that lie about their length, that are none, or that never end; and many who say nothing.
TEST(Rendezvous, StrangersNeitherCrashNorStallIt) {
  using namespace std::string_view_literals;
  Place place(2);
  Links zero;
  const Place& where = place;
  std::optional<Listener> listener = std::move(place.listener);
  auto all = in_background([&] { zero = meet(where.of(0), std::move(listener)); });
  std::vector<Socket> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(connect(where));
  say(strangers[80], "GET / HTTP/1.1\r\nHost: here\r\n\r\n");
  say(strangers[81], "TERA\x00\x00\x00\x00\xff\xff\xff\xff"sv);
  say(strangers[82], "TERA\x00\x00\x00\x00\x18\x00\x00\x00"sv);      // and nothing more
  say(strangers[83], "TERA\x00\x00\x00\x00\x04\x00\x00\x00oops"sv);  // a short hello
  say(strangers[84], "TERA\xff\x00\x00\x00\x00\x00\x00\x00"sv);      // no such kind
  say(strangers[85], "TERA\x01\x00\x00\x00\x00\x00\x00\x00"sv);      // a welcome
  say(strangers[86], std::string(100'000, 'x'));
  strangers.erase(strangers.begin() + 90, strangers.end());
  const auto begin = Clock::now();
  const Links one = meet(where.of(1));
  EXPECT_EQ(all.get(), "");
  EXPECT_LT(Clock::now() - begin, 5s);
  EXPECT_EQ(zero.of_hub.size(), 2u);
}

// While it lives, this process may open so many more files.
class FilesLeft {
 public:
  explicit FilesLeft(int files) {
    const Socket lowest(::dup(STDIN_FILENO));
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit fewer = before_;
    fewer.rlim_cur = static_cast<rlim_t>(lowest.get() + files);
    ::setrlimit(RLIMIT_NOFILE, &fewer);
  }
  ~FilesLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

constexpr int of_rank_zero = 2;  // its connection to itself

double seconds_of_this_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

#ifdef __SANITIZE_ADDRESS__
constexpr bool sanitizer_opens_files = true;  // to see whether memory is there before it looks at an object's type
#else
constexpr bool sanitizer_opens_files = false;
#endif

// Who cannot be let in stays at the door: that is no reason to look again and again.
TEST(Rendezvous, NoDescriptorsLeft) {
  if (sanitizer_opens_files) GTEST_SKIP() << "without files the sanitizer takes sound objects for broken ones";
  Place place(2);
  const Socket waiting = connect(place);
  const double before = seconds_of_this_thread();
  std::string message;
  {
    const FilesLeft none(of_rank_zero);
    message = message_of<UserError>([&] { meet(place.of(0, 1500ms), std::move(place.listener)); });
  }
  EXPECT_TRUE(contains(message, "rank 1 of 2 did not come")) << message;
  EXPECT_TRUE(contains(message, "Too many open files; `ulimit -n`")) << message;
  EXPECT_LT(seconds_of_this_thread() - before, 0.5);
}

// Those who say nothing make room for ranks.
TEST(Rendezvous, StrangersLeaveDescriptorsToRanks) {
  if (sanitizer_opens_files) GTEST_SKIP() << "without files the sanitizer takes sound objects for broken ones";
  Place place(2);
  std::vector<Socket> strangers;
  for (int i = 0; i < 6; ++i) strangers.push_back(connect(place));
  const Link rank = come_as_rank_1(place);
  const FilesLeft few(of_rank_zero + 3);
  const Links zero = meet(place.of(0, 4s), std::move(place.listener));
  EXPECT_TRUE(zero.of_hub[1].open());
}

}  // namespace
}  // namespace tera::test
