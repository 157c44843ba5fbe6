#pragma once
// Ctrl-C that ends a run after the step at hand.

#include <csignal>

namespace tera {

// While it lives, SIGINT and SIGTERM wait to be asked for instead of ending the process; after the first one the next
// ends it at once, as usual. Make it before any thread is started: threads inherit what it does. No handler, no global.
class StopRequest {
 public:
  StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  ~StopRequest();
  bool asked();  // since construction

 private:
  sigset_t signals_, before_;
  bool asked_ = false;
};

}  // namespace tera
