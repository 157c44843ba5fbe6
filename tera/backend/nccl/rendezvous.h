#pragma once
// How processes meet without MPI: all connect to rank 0 and say who they are; when all have come, rank 0 says so and
// listens no more. Who is no rank of this job is turned away, and cannot hold the others up.

#include <chrono>
#include <optional>
#include <vector>

#include "tera/backend/nccl/frame.h"
#include "tera/comm/meeting.h"

namespace tera::nccl {

struct Attendance {
  Meeting meeting{};
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{600'000};
  std::chrono::milliseconds time_to_return{10'000};    // for who came, or was there as rank 0, and has gone again
  std::chrono::milliseconds time_to_say_hello{5'000};  // for who has connected
};

// The connections of a rank: everybody's to the hub, and on rank 0 those of the hub to all, itself too.
struct Links {
  Link to_hub;
  std::vector<Link> of_hub;  // by rank; empty elsewhere
};

// UserError where ranks do not come, cannot be reached, or do not belong together.
Links meet(const Attendance& attendance);
// The same, with a listener that rank 0 has opened already; `listener` is given there only.
Links meet(const Attendance& attendance, std::optional<Listener> listener);

}  // namespace tera::nccl
