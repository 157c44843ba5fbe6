#include "tera/base/signals.h"

#include <ctime>

#include "tera/base/error.h"

namespace tera {

StopRequest::StopRequest() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  require(pthread_sigmask(SIG_BLOCK, &signals_, &before_) == 0, "signals cannot be blocked");
}

StopRequest::~StopRequest() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

bool StopRequest::asked() {
  if (asked_) return true;
  const timespec now{};  // do not wait
  asked_ = sigtimedwait(&signals_, nullptr, &now) > 0;
  if (asked_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  return asked_;
}

}  // namespace tera
