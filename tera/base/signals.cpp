#include "tera/base/signals.h"

#include <unistd.h>

#include <system_error>

#include "tera/base/error.h"

namespace tera {
namespace {

// As the signal would have done had nobody waited for it. It is enough that one thread does not block it. An ignored
// signal (a shell ignores SIGINT for what it starts in the background) was sent on purpose all the same.
void end_process(int number) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  std::signal(number, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(number);
}

}  // namespace

std::thread start_undisturbed(std::function<void()> work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

StopRequest::StopRequest() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGHUP);   // the terminal was closed
  sigaddset(&signals_, SIGUSR1);  // what batch systems send before the end, and mpirun hands on
  require(pthread_sigmask(SIG_BLOCK, &signals_, &before_) == 0, "signals cannot be blocked");
  try {
    taker_ = std::thread([this] { take_signals(); });
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    fail_user("the system gives no thread to wait for Ctrl-C ({})", error.what());
  }
}

StopRequest::~StopRequest() {
  over_ = true;
  pthread_kill(taker_.native_handle(), SIGTERM);  // to that thread only, and blocked there: it just wakes up
  taker_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void StopRequest::announce(std::string notice) {
  const std::lock_guard lock(mutex_);
  notice_ = std::move(notice);
}

void StopRequest::take_signals() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point first;
  while (true) {
    int number = 0;
    if (sigwait(&signals_, &number) != 0) continue;
    if (over_) return;
    if (!collecting_ || (asked_ && number == SIGINT && Clock::now() - first >= impatience)) end_process(number);
    if (asked_) continue;
    first = Clock::now();
    signal_ = number;
    asked_ = true;
    const std::lock_guard lock(mutex_);
    const ssize_t written = ::write(STDERR_FILENO, notice_.data(), notice_.size());
    static_cast<void>(written);  // nobody may be there to read it
  }
}

}  // namespace tera
