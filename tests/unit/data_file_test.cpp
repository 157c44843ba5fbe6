#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/signals.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

// While it lives, no file of this process can grow past `bytes`, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(File, ReadsWholeWithinTheCap) {
  const TempFolder folder;
  const auto path = folder.write("a.txt", "12345");
  EXPECT_EQ(read_whole_file(path, 5), "12345");
  const std::string message = message_of<UserError>([&] { read_whole_file(path, 4); });
  EXPECT_TRUE(contains(message, "a.txt has 5 bytes") && contains(message, "at most 4")) << message;
}

TEST(File, NamesWhatCannotBeRead) {
  const TempFolder folder;
  EXPECT_TRUE(contains(message_of<UserError>([&] { read_whole_file(folder / "none", 9); }), "No such file"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { read_whole_file(folder.path(), 9); }), "a folder"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { read_whole_file("/dev/zero", 9); }), "special"));
}

TEST(File, AtomicWriteReplacesWhole) {
  const TempFolder folder;
  const auto path = folder.write("a.txt", "old and longer");
  write_file_atomically(path, "new");
  EXPECT_EQ(slurp(path), "new");
  EXPECT_EQ(folder.files(), 1u);
}

TEST(File, AtomicWriteLeavesNothingWhenAbandonedOrImpossible) {
  const TempFolder folder;
  const auto path = folder.write("a.txt", "old");
  {
    AtomicFile file(path);
    file.write_at(0, std::as_bytes(std::span("half", 4)));
    EXPECT_EQ(folder.files(), 2u);
  }
  EXPECT_EQ(folder.files(), 1u);
  EXPECT_EQ(slurp(path), "old");
  {
    const FileSizeLimit full(100);
    EXPECT_TRUE(contains(message_of<UserError>([&] { write_file_atomically(path, std::string(101, 'x')); }), "a.txt"));
  }
  EXPECT_EQ(folder.files(), 1u);
  EXPECT_EQ(slurp(path), "old");
  EXPECT_TRUE(contains(message_of<UserError>([&] { AtomicFile file(folder / "no/such/folder/x"); }), "no/such/folder"));
}

TEST(File, AppendTakesBackALineThatDoesNotFit) {
  const TempFolder folder;
  const auto path = folder / "log";
  AppendFile file(path, AppendFile::Start::empty);
  file.append("one\n");
  {
    const FileSizeLimit full(6);
    EXPECT_TRUE(contains(message_of<UserError>([&] { file.append("three\n"); }), "log"));
  }
  EXPECT_EQ(slurp(path), "one\n");
  file.append("two\n");
  AppendFile(path, AppendFile::Start::keep).append("three\n");
  EXPECT_EQ(slurp(path), "one\ntwo\nthree\n");
  AppendFile(path, AppendFile::Start::empty);
  EXPECT_EQ(slurp(path), "");
}

TEST(File, FullDeviceIsAUserError) {
  AppendFile file("/dev/full", AppendFile::Start::keep);
  const std::string message = message_of<UserError>([&] { file.append("x"); });
  EXPECT_TRUE(contains(message, "/dev/full") && contains(message, "No space")) << message;
}

// Whether the request arrives; another thread receives the signal.
bool comes(const StopRequest& stop) {
  for (int i = 0; i < 1000 && !stop.asked(); ++i) ::usleep(5000);
  return stop.asked();
}

TEST(StopRequest, NotesTheFirstSignalAndLeavesNothingBehind) {
  for (const int number : {SIGINT, SIGTERM}) {
    StopRequest stop;
    stop.collect();
    EXPECT_FALSE(stop.asked());
    ::kill(::getpid(), number);
    EXPECT_TRUE(comes(stop));
  }
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_FALSE(sigismember(&blocked, SIGINT) || sigismember(&blocked, SIGTERM));
  const StopRequest next;
  EXPECT_FALSE(next.asked());
}

// The main thread is busy and asks nothing, as in a long step.
void stay_busy() {
  ::sleep(20);
  std::_Exit(7);
}

TEST(StopRequest, ALaterInterruptEndsTheProcessAtOnce) {
  const auto interrupt_twice = [] {
    StopRequest stop;
    stop.announce("stopping\n");
    stop.collect();
    ::kill(::getpid(), SIGINT);
    if (!comes(stop)) std::_Exit(8);
    std::this_thread::sleep_for(StopRequest::force_quit_delay + std::chrono::milliseconds(100));
    ::kill(::getpid(), SIGINT);
    stay_busy();
  };
  EXPECT_EXIT(interrupt_twice(), testing::KilledBySignal(SIGINT), "^stopping\n$");
}

// One Ctrl-C may arrive several times, by way of launchers; and batch systems send SIGTERM after SIGUSR1.
TEST(StopRequest, OtherSignalsAfterTheFirstChangeNothing) {
  const auto interrupt_often = [] {
    StopRequest stop;
    stop.collect();
    ::kill(::getpid(), SIGUSR1);
    if (!comes(stop)) std::_Exit(8);
    for (int i = 0; i < 3; ++i, ::usleep(10000)) ::kill(::getpid(), SIGINT);
    std::this_thread::sleep_for(StopRequest::force_quit_delay + std::chrono::milliseconds(100));
    for (const int number : {SIGTERM, SIGHUP, SIGUSR1})
      for (int i = 0; i < 2; ++i, ::usleep(10000)) ::kill(::getpid(), number);
    std::_Exit(9);
  };
  EXPECT_EXIT(interrupt_often(), testing::ExitedWithCode(9), "");
}

TEST(StopRequest, BeforeItCollectsTheFirstSignalEndsTheProcess) {
  const auto interrupt = [](int number) {
    const StopRequest stop;
    ::kill(::getpid(), number);
    stay_busy();
  };
  EXPECT_EXIT(interrupt(SIGINT), testing::KilledBySignal(SIGINT), "");
  EXPECT_EXIT(interrupt(SIGTERM), testing::KilledBySignal(SIGTERM), "");
  std::signal(SIGINT, SIG_IGN);  // as a shell does for what it starts in the background
  EXPECT_EXIT(interrupt(SIGINT), testing::KilledBySignal(SIGINT), "");
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace
}  // namespace tera::test
