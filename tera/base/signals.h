#pragma once
// A graceful stop on Ctrl-C, after the current step, and an immediate one on the second Ctrl-C.

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

namespace tera {

// The user asked to stop before all was done; tera prints the message and exits with status(), as shells do for a
// program that the signal ended.
class Interrupted : public std::runtime_error {
 public:
  Interrupted(const std::string& message, int signal) : std::runtime_error(message), signal_(signal) {}
  int status() const { return 128 + signal_; }

 private:
  int signal_;
};

// Starts a thread with all signals blocked, so that other threads get them.
std::thread start_thread_with_signals_blocked(std::function<void()> work);

// While it lives, a thread of its own takes every SIGINT, SIGTERM, SIGHUP and SIGUSR1 (sigwait). Until collect() they
// end the process at once, which loses nothing during set-up. After collect() the first one only sets asked(), and a
// SIGINT that comes two seconds later or more ends the process at once, however long the step takes. Other signals do
// not: launchers and batch systems send several signals of different kinds for one request. Make it before any other
// thread is started, since threads inherit the signal mask. It has no handler and no global.
class StopRequest {
 public:
  StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  ~StopRequest();

  static constexpr std::chrono::milliseconds force_quit_delay{2000};

  void collect() { collecting_ = true; }
  // Sets the text that is written to standard error at the first signal.
  void announce(std::string notice);
  bool asked() const { return asked_; }   // since collect()
  int signal() const { return signal_; }  // the first signal, where asked()
  const std::atomic<bool>& flag() const { return asked_; }

 private:
  void take_signals();

  sigset_t signals_, before_;
  std::atomic<bool> collecting_ = false, asked_ = false, over_ = false;
  std::atomic<int> signal_ = 0;
  std::mutex mutex_;  // guards notice_
  std::string notice_;
  std::thread taker_;
};

}  // namespace tera
