#pragma once
// For a profile: when calls that run beside a rank's queue were under way.

#include <string_view>
#include <vector>

#include "tera/comm/call.h"
#include "tera/ops/ticket.h"

namespace tera {

struct TimedCall {
  std::string_view group;  // "tp"; of a Comm that is still there
  CallKind kind = CallKind::none;
  Ticket begin, end;  // begin: what it waits for is there
};

// A Comm that can say so, for all groups that were split from the same world.
class CallTimer {
 public:
  virtual ~CallTimer() = default;
  virtual void note_calls(std::vector<TimedCall>* notes) = 0;  // from here on; null: no more
};

}  // namespace tera
