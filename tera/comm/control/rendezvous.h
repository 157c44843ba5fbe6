#pragma once
// The rendezvous of the processes of a job: all connect to rank 0 and send a hello with their rank; when all have come,
// rank 0 welcomes them and stops listening. A process that is no rank of this job is refused, and delays nobody.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tera/comm/control/frame.h"
#include "tera/comm/rendezvous_address.h"

namespace tera::control {

struct RendezvousOptions {
  RendezvousAddress address{};
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{600'000};
  std::chrono::milliseconds return_timeout{10'000};  // for a rank that was connected, or was rank 0, and is gone
  std::chrono::milliseconds hello_timeout{5'000};    // after connecting
  std::string where_from = "MASTER_ADDR and MASTER_PORT say where it is";  // for who does not find rank 0
};

// The connections of a rank: its own to the coordinator and, on rank 0, those of the coordinator to all ranks,
// itself included.
struct Links {
  Link to_coordinator;
  std::vector<Link> to_ranks;  // by rank; empty elsewhere
};

// UserError where ranks do not come, cannot be reached, or do not belong together.
Links rendezvous(const RendezvousOptions& options);
// The rendezvous for a listener that rank 0 has opened already; the others pass none.
Links rendezvous(const RendezvousOptions& options, std::optional<Listener> listener);

}  // namespace tera::control
