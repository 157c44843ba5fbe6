// The rendezvous of processes without MPI: ranks of one job connect, and any other client is refused without delaying
// them.

#include "tera/comm/control/rendezvous.h"

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

using namespace control;
using namespace std::chrono_literals;

constexpr auto max_wait = 10s;

// Rank 0 listens at a port of its own choice, whose number the others get.
struct TestJob {
  explicit TestJob(int ranks, const std::string& host = "127.0.0.1") : listener(listen_at(host, 0, 0)), size(ranks) {
    address = {.host = host, .port = listener->port, .spare_ports = 0, .job = "a job"};
  }
  RendezvousOptions of(int rank, std::chrono::milliseconds timeout = max_wait) const {
    return {.address = address, .rank = rank, .size = size, .timeout = timeout};
  }
  std::optional<Listener> listener;
  RendezvousAddress address;
  int size;
};

// Runs a rendezvous on a thread. Returns the message of its UserError, or nothing.
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

void expect_connected(Links& coordinator, Links& rank, std::size_t number) {
  rank.to_coordinator.send(FrameKind::heartbeat);
  rank.to_coordinator.pump();
  const auto frame = wait_for_frame(coordinator.to_ranks[number], Clock::now() + max_wait);
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->kind, FrameKind::heartbeat);
}

void expect_rendezvous(const std::string& host) {
  TestJob test_job(3, host);
  Links links[3];
  std::vector<std::future<std::string>> others;
  for (int rank : {2, 1}) others.push_back(in_background([&, rank] { links[rank] = rendezvous(test_job.of(rank)); }));
  links[0] = rendezvous(test_job.of(0), std::move(test_job.listener));
  for (auto& other : others) EXPECT_EQ(other.get(), "");
  ASSERT_EQ(links[0].to_ranks.size(), 3u);
  for (std::size_t rank = 0; rank < 3; ++rank) expect_connected(links[0], links[rank], rank);
  std::string why;  // nobody listens any more
  EXPECT_FALSE(connect_once(host, test_job.address.port, Clock::now() + 1s, why));
}

bool has_ipv6() {
  try {
    listen_at("::1", 0, 0);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

TEST(Rendezvous, RanksConnect) {
  expect_rendezvous("127.0.0.1");
  expect_rendezvous("localhost");
}

TEST(Rendezvous, OverIPv6) {
  if (!has_ipv6()) GTEST_SKIP() << "this machine has no IPv6";
  expect_rendezvous("::1");
}

TEST(Rendezvous, RankZeroMayComeLast) {
  const int port = listen_at("127.0.0.1", 0, 0).port;
  const RendezvousAddress address{.host = "127.0.0.1", .port = port};
  auto other = in_background([&] { rendezvous({.address = address, .rank = 1, .size = 2, .timeout = max_wait}); });
  std::this_thread::sleep_for(300ms);
  rendezvous({.address = address, .rank = 0, .size = 2, .timeout = max_wait});
  EXPECT_EQ(other.get(), "");
}

// Where the launcher itself listens at the port, the ranks use the next one that is free.
TEST(Rendezvous, AnotherPortWhereTheFirstIsTaken) {
  const Listener taken = listen_at("127.0.0.1", 0, 0);
  if (taken.port > 65000) GTEST_SKIP() << "no room behind port " << taken.port;
  const RendezvousAddress address{.host = "127.0.0.1", .port = taken.port, .spare_ports = 8};
  auto other = in_background(
      [&] { rendezvous({.address = address, .rank = 1, .size = 2, .timeout = 30s, .hello_timeout = 500ms}); });
  rendezvous({.address = address, .rank = 0, .size = 2, .timeout = 30s});
  EXPECT_EQ(other.get(), "");
  const std::string message = message_of<UserError>([&] { listen_at("127.0.0.1", taken.port, 0); });
  EXPECT_TRUE(contains(message, "Address already in use")) << message;
  EXPECT_TRUE(contains(message, std::to_string(taken.port))) << message;
}

TEST(Rendezvous, WhoDoesNotComeIsNamed) {
  TestJob test_job(4);
  auto other = in_background([&] { rendezvous(test_job.of(2)); });
  const std::string message =
      message_of<UserError>([&] { rendezvous(test_job.of(0, 700ms), std::move(test_job.listener)); });
  EXPECT_TRUE(contains(message, "ranks 1, 3 of 4 did not come to 127.0.0.1:")) << message;
  EXPECT_TRUE(contains(other.get(), "ranks 1, 3 of 4 did not come"));
}

TEST(Rendezvous, ARankZeroThatIsNotThere) {
  const int port = listen_at("127.0.0.1", 0, 0).port;
  const RendezvousOptions attendance{
      .address = {.host = "127.0.0.1", .port = port}, .rank = 3, .size = 4, .timeout = 300ms};
  const std::string message = message_of<UserError>([&] { rendezvous(attendance); });
  EXPECT_TRUE(contains(message, "rank 3 did not reach rank 0 at 127.0.0.1:")) << message;
  EXPECT_TRUE(contains(message, "Connection refused")) << message;
  RendezvousOptions nowhere = attendance;
  nowhere.address.host = "no.such.host.invalid";
  EXPECT_TRUE(contains(message_of<UserError>([&] { rendezvous(nowhere); }), "no.such.host.invalid"));
}

// The rank that sees another size ends at once. Rank 0 goes on, as the client may have been a rank of another job, and
// reports the size if a rank is missing.
TEST(Rendezvous, DifferentSizes) {
  TestJob test_job(2);
  RendezvousOptions other = test_job.of(1);
  other.size = 4;
  std::optional<Listener> listener = std::move(test_job.listener);
  Links zero, one;
  auto all = in_background([&] { zero = rendezvous(test_job.of(0), std::move(listener)); });
  const std::string words = "rank 1 (from 127.0.0.1) was started as one of 4 ranks, and rank 0 as one of 2";
  const std::string ended = message_of<UserError>([&] { rendezvous(other); });
  EXPECT_TRUE(contains(ended, words)) << ended;
  one = rendezvous(test_job.of(1));
  EXPECT_EQ(all.get(), "");

  TestJob again(2);
  other.address = again.address;
  auto refused = in_background([&] { rendezvous(other); });
  const std::string message = message_of<UserError>([&] { rendezvous(again.of(0, 700ms), std::move(again.listener)); });
  EXPECT_TRUE(contains(message, "rank 1 of 2 did not come to 127.0.0.1:")) << message;
  EXPECT_TRUE(contains(message, words)) << message;
  EXPECT_TRUE(contains(refused.get(), words));
}

// Clients that are no ranks of this job are refused, and the ranks connect all the same.
TEST(Rendezvous, WhoDoesNotBelongIsRefused) {
  TestJob test_job(3);
  Links first, second, zero;
  auto one = in_background([&] { first = rendezvous(test_job.of(1)); });
  auto all = in_background([&] { zero = rendezvous(test_job.of(0), std::move(test_job.listener)); });
  RendezvousOptions stranger = test_job.of(2);
  stranger.address.job = "another job";
  EXPECT_TRUE(contains(message_of<UserError>([&] { rendezvous(stranger); }), "waits for the ranks of another job"));
  RendezvousOptions far = test_job.of(2);
  far.rank = 7;
  EXPECT_TRUE(contains(message_of<UserError>([&] { rendezvous(far); }), "there is no rank 7 of 3 to come"));
  std::this_thread::sleep_for(300ms);  // rank 1 is there by now
  EXPECT_TRUE(contains(message_of<UserError>([&] { rendezvous(test_job.of(1)); }), "rank 1 is there already"));
  second = rendezvous(test_job.of(2));
  EXPECT_EQ(one.get(), "");
  EXPECT_EQ(all.get(), "");
}

Socket connect(const TestJob& test_job) {
  std::string why;
  Socket socket = connect_once("127.0.0.1", test_job.address.port, Clock::now() + max_wait, why);
  EXPECT_TRUE(socket) << why;
  return socket;
}

void say(const Socket& socket, std::string_view bytes) {
  EXPECT_GE(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
}

// A client that introduces itself as rank 1 and reads no answer.
Link come_as_rank_1(const TestJob& test_job) {
  struct {
    std::uint32_t version = 3;
    std::int32_t size, rank = 1, zero = 0;
    std::uint64_t job = hash_text("a job");
  } const hello{.size = test_job.size};
  Link link(connect(test_job), 1024);
  link.send(FrameKind::hello, std::as_bytes(std::span(&hello, 1)));
  link.pump();
  return link;
}

bool is_noted(Link& link) {
  const auto answer = wait_for_frame(link, Clock::now() + max_wait);
  return answer && answer->kind == FrameKind::heartbeat;
}

// A rank of an earlier attempt of the same job ends when the next attempt starts: its rank number is free at once.
TEST(Rendezvous, WhoHasGoneFreesItsRank) {
  TestJob test_job(3);
  Links zero, one;
  const TestJob& where = test_job;
  std::optional<Listener> listener = std::move(test_job.listener);
  auto all = in_background([&] { zero = rendezvous(where.of(0), std::move(listener)); });
  for (int attempt = 0; attempt < 50; ++attempt) {
    Link link = come_as_rank_1(where);
    ASSERT_TRUE(is_noted(link)) << "attempt " << attempt << ": it was turned away";
  }
  auto last = in_background([&] { one = rendezvous(where.of(1)); });
  const Links two = rendezvous(where.of(2));
  EXPECT_EQ(last.get(), "");
  EXPECT_EQ(all.get(), "");
}

// A rank that is killed during the rendezvous is not waited for as long as one that has not connected yet.
TEST(Rendezvous, WhoCameAndHasGoneIsNamedSoon) {
  TestJob test_job(4);
  RendezvousOptions zero = test_job.of(0);
  zero.return_timeout = 500ms;
  const TestJob& where = test_job;
  std::optional<Listener> listener = std::move(test_job.listener);
  const auto begin = Clock::now();
  auto all = in_background([&] { rendezvous(zero, std::move(listener)); });
  auto other = in_background([&] { rendezvous(where.of(2)); });
  {
    Link killed = come_as_rank_1(where);
    ASSERT_TRUE(is_noted(killed));
  }
  const std::string words = "rank 1 of 4 came to 127.0.0.1:" + std::to_string(where.address.port) +
                            ", but its connection was closed, as when it is killed, and it has not returned";
  const std::string message = all.get(), others = other.get();
  EXPECT_TRUE(contains(message, words + "; rank 3 did not come")) << message;
  EXPECT_TRUE(contains(others, words)) << others;
  EXPECT_LT(Clock::now() - begin, 5s);
  EXPECT_GE(Clock::now() - begin, 500ms);
}

// At the timeout, ranks that had connected and are gone are not reported as never having come.
TEST(Rendezvous, WhoHasGoneIsNotSaidNotToHaveCome) {
  TestJob test_job(3);
  const TestJob& where = test_job;
  std::optional<Listener> listener = std::move(test_job.listener);
  auto all = in_background([&] { rendezvous(where.of(0, 700ms), std::move(listener)); });
  {
    Link killed = come_as_rank_1(where);
    ASSERT_TRUE(is_noted(killed));
  }
  const std::string message = all.get();
  EXPECT_TRUE(contains(message, "rank 2 of 3 did not come to 127.0.0.1:")) << message;
  EXPECT_TRUE(contains(message, "(rank 1 came, but its connection was closed, as when it is killed)")) << message;
}

// Acts as rank 0 for one client: it answers and then closes the connection, as if it was killed.
void note_one_and_go(const Listener& listener) {
  ASSERT_TRUE(wait_for(listener.socket.get(), /*write=*/false, Clock::now() + max_wait));
  Link link(accept_one(listener).socket, 1024);
  ASSERT_TRUE(wait_for_frame(link, Clock::now() + max_wait).has_value());
  link.send(FrameKind::heartbeat);
  link.pump();
}

// Ranks wait for a rank 0 that does not listen yet, but not for long for one that was there and is gone.
TEST(Rendezvous, ARankZeroThatHasGoneIsNamedSoon) {
  TestJob test_job(2);
  RendezvousOptions one = test_job.of(1);
  one.return_timeout = 500ms;
  auto other = in_background([&] { rendezvous(one); });
  note_one_and_go(*test_job.listener);
  test_job.listener.reset();
  const auto begin = Clock::now();
  const std::string message = other.get();
  EXPECT_TRUE(contains(message, "rank 0 at 127.0.0.1:" + std::to_string(one.address.port) +
                                    " had noted rank 1, but the connection was closed, as when rank 0 is killed, and "
                                    "it has not returned"))
      << message;
  EXPECT_LT(Clock::now() - begin, 5s);
}

// A rank 0 that was killed and restarted is not reported as gone, however long it then waits.
TEST(Rendezvous, ARankZeroThatIsBackWaitsForOthers) {
  TestJob test_job(3);
  RendezvousOptions one = test_job.of(1, 1500ms);
  one.return_timeout = 500ms;
  auto other = in_background([&] { rendezvous(one); });
  note_one_and_go(*test_job.listener);
  std::optional<Listener> listener = std::move(test_job.listener);
  auto all = in_background([&] { rendezvous(test_job.of(0, 2s), std::move(listener)); });
  const std::string message = other.get();
  EXPECT_TRUE(contains(message, "rank 1 did not reach rank 0 at")) << message;
  EXPECT_TRUE(contains(message, "(it is there, but not all ranks have come)")) << message;
  EXPECT_TRUE(contains(all.get(), "rank 2 of 3 did not come"));
}

TEST(Rendezvous, ARankZeroThatWaitsForOthers) {
  TestJob test_job(3);
  const TestJob& where = test_job;
  std::optional<Listener> listener = std::move(test_job.listener);
  auto all = in_background([&] { rendezvous(where.of(0, 1s), std::move(listener)); });
  const std::string message = message_of<UserError>([&] { rendezvous(where.of(1, 300ms)); });
  EXPECT_TRUE(contains(message, "rank 1 did not reach rank 0 at")) << message;
  EXPECT_TRUE(contains(message, "(it is there, but not all ranks have come)")) << message;
  EXPECT_TRUE(contains(all.get(), "rank 2 of 3 did not come"));
}

TEST(Rendezvous, ARankZeroMayReturnOrComeLate) {
  TestJob test_job(2);
  RendezvousOptions one = test_job.of(1);
  one.return_timeout = 3s;
  auto other = in_background([&] { rendezvous(one); });
  note_one_and_go(*test_job.listener);
  test_job.listener.reset();
  std::this_thread::sleep_for(200ms);
  rendezvous(test_job.of(0));
  EXPECT_EQ(other.get(), "");

  one.return_timeout = 50ms;
  auto again = in_background([&] { rendezvous(one); });
  std::this_thread::sleep_for(500ms);
  rendezvous(test_job.of(0));
  EXPECT_EQ(again.get(), "");
}

// Strangers send frames with a wrong length, no frames at all or frames without an end, and many send nothing.
TEST(Rendezvous, StrangersNeitherCrashNorStallIt) {
  using namespace std::string_view_literals;
  TestJob test_job(2);
  Links zero;
  const TestJob& where = test_job;
  std::optional<Listener> listener = std::move(test_job.listener);
  auto all = in_background([&] { zero = rendezvous(where.of(0), std::move(listener)); });
  std::vector<Socket> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(connect(where));
  say(strangers[80], "GET / HTTP/1.1\r\nHost: here\r\n\r\n");
  say(strangers[81], "TERA\x00\x00\x00\x00\xff\xff\xff\xff"sv);
  say(strangers[82], "TERA\x00\x00\x00\x00\x18\x00\x00\x00"sv);      // a hello's header without its payload
  say(strangers[83], "TERA\x00\x00\x00\x00\x04\x00\x00\x00oops"sv);  // a short hello
  say(strangers[84], "TERA\xff\x00\x00\x00\x00\x00\x00\x00"sv);      // no such kind
  say(strangers[85], "TERA\x01\x00\x00\x00\x00\x00\x00\x00"sv);      // a welcome
  say(strangers[86], std::string(100'000, 'x'));
  strangers.erase(strangers.begin() + 90, strangers.end());
  const auto begin = Clock::now();
  const Links one = rendezvous(where.of(1));
  EXPECT_EQ(all.get(), "");
  EXPECT_LT(Clock::now() - begin, 5s);
  EXPECT_EQ(zero.to_ranks.size(), 2u);
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

// A connection that cannot be accepted for lack of descriptors stays pending, and rank 0 does not poll for it in a busy
// loop.
TEST(Rendezvous, NoDescriptorsLeft) {
  if (sanitizer_opens_files) GTEST_SKIP() << "without files the sanitizer takes sound objects for broken ones";
  TestJob test_job(2);
  const Socket waiting = connect(test_job);
  const double before = seconds_of_this_thread();
  std::string message;
  {
    const FilesLeft none(of_rank_zero);
    message = message_of<UserError>([&] { rendezvous(test_job.of(0, 1500ms), std::move(test_job.listener)); });
  }
  EXPECT_TRUE(contains(message, "rank 1 of 2 did not come")) << message;
  EXPECT_TRUE(contains(message, "Too many open files; `ulimit -n`")) << message;
  EXPECT_LT(seconds_of_this_thread() - before, 0.5);
}

// Silent connections are closed to free descriptors for ranks.
TEST(Rendezvous, StrangersLeaveDescriptorsToRanks) {
  if (sanitizer_opens_files) GTEST_SKIP() << "without files the sanitizer takes sound objects for broken ones";
  TestJob test_job(2);
  std::vector<Socket> strangers;
  for (int i = 0; i < 6; ++i) strangers.push_back(connect(test_job));
  const Link rank = come_as_rank_1(test_job);
  const FilesLeft few(of_rank_zero + 3);
  const Links zero = rendezvous(test_job.of(0, 4s), std::move(test_job.listener));
  EXPECT_TRUE(zero.to_ranks[1].open());
}

}  // namespace
}  // namespace tera::test
