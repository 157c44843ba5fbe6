#pragma once
// Ctrl-C that ends a run after the step at hand.

#include <atomic>
#include <csignal>
#include <thread>

namespace tera {

// While it lives, a thread of its own takes every SIGINT, SIGTERM, SIGHUP and SIGUSR1. Until collect() they end the
// process at once, as usual: nothing is lost by that during set-up. After collect() the first one is only noted for
// asked(), and the next ends the process at once, however long the step takes. Make it before any other thread is
// started: threads inherit that they are not disturbed. No handler, no global.
class StopRequest {
 public:
  StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  ~StopRequest();

  void collect() { collecting_ = true; }
  bool asked() const { return asked_; }  // since collect()

 private:
  void take_signals();

  sigset_t signals_, before_;
  std::atomic<bool> collecting_ = false, asked_ = false, over_ = false;
  std::thread taker_;
};

}  // namespace tera
