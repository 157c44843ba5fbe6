#pragma once
// Ctrl-C that ends a run after the step at hand, and a second one that does not wait for that.

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

// A thread that no signal disturbs: they are for the threads that the program had before.
std::thread start_undisturbed(std::function<void()> work);

// While it lives, a thread of its own takes every SIGINT, SIGTERM, SIGHUP and SIGUSR1. Until collect() they end the
// process at once, as usual: nothing is lost by that during set-up. After collect() the first one is only noted for
// asked(), and a SIGINT that comes two seconds later or more ends the process at once, however long the step takes.
// Nothing else does: launchers and batch systems send several signals, and more than one kind, for one wish. Make it
// before any other thread is started: threads inherit that they are not disturbed. No handler, no global.
class StopRequest {
 public:
  StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  ~StopRequest();

  static constexpr std::chrono::milliseconds impatience{2000};

  void collect() { collecting_ = true; }
  // What to say on standard error when the first signal has come; until then nothing.
  void announce(std::string notice);
  bool asked() const { return asked_; }   // since collect()
  int signal() const { return signal_; }  // which one it was, where asked()
  const std::atomic<bool>& flag() const { return asked_; }

 private:
  void take_signals();

  sigset_t signals_, before_;
  std::atomic<bool> collecting_ = false, asked_ = false, over_ = false;
  std::atomic<int> signal_ = 0;
  std::mutex mutex_;  // guards the next
  std::string notice_;
  std::thread taker_;
};

}  // namespace tera
