#include "tera/base/signals.h"

#include <unistd.h>

#include <system_error>

#include "tera/base/error.h"

namespace tera {
namespace {

// Raises the signal with its default action. It is enough that one thread does not block it. A signal that was ignored
// (a shell ignores SIGINT for background processes) ends the process, too, since it was sent on purpose.
void end_process(int number) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  std::signal(number, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(number);
}

}  // namespace

std::thread start_thread_with_signals_blocked(std::function<void()> work) {
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
  sigaddset(&signals_, SIGUSR1);  // sent by batch systems before the time limit, and forwarded by mpirun
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
  pthread_kill(taker_.native_handle(), SIGTERM);  // only wakes that thread, in which it is blocked
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
    if (!collecting_ || (asked_ && number == SIGINT && Clock::now() - first >= force_quit_delay)) end_process(number);
    if (asked_) continue;
    first = Clock::now();
    signal_ = number;
    asked_ = true;
    const std::lock_guard lock(mutex_);
    const ssize_t written = ::write(STDERR_FILENO, notice_.data(), notice_.size());
    static_cast<void>(written);  // stderr may be closed
  }
}

}  // namespace tera
