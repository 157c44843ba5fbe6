#pragma once
// For a profile: the times at which calls that overlap with a rank's queue were in flight.

#include <string_view>
#include <vector>

#include "tera/comm/call.h"
#include "tera/ops/ticket.h"

namespace tera {

struct TimedCall {
  std::string_view group;  // "tp"; the Comm outlives it
  CallKind kind = CallKind::none;
  Ticket begin, end;  // begin: the call's inputs are ready
};

// A Comm that can time its calls, for all groups that were split from the same world.
class CallTimer {
 public:
  virtual ~CallTimer() = default;
  virtual void note_calls(std::vector<TimedCall>* notes) = 0;  // appends every call from here on; null: stops
};

}  // namespace tera
