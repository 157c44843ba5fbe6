#pragma once
// Ranks as threads of one process. They read each other's memory directly, each through its own Ops: on the CPU, or on
// one GPU that all of them use. thread_group.h says how they meet.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tera/comm/comm.h"

namespace tera {

struct ThreadCommOptions {
  std::chrono::milliseconds timeout{600'000};  // of every wait
};

class ThreadHubState;

// Where the ranks meet: owns the world and every group split from it, so it outlives all their Comms.
class ThreadHub {
 public:
  explicit ThreadHub(int ranks, const ThreadCommOptions& options = {});
  ~ThreadHub();
  ThreadHub(const ThreadHub&) = delete;
  ThreadHub& operator=(const ThreadHub&) = delete;

  // The world as `rank` sees it, working through `ops`; each rank asks once, on its own thread.
  std::unique_ptr<Comm> join(int rank, Ops& ops);

  // Wakes all ranks that wait, and all that will. The first call counts.
  void abort(int rank, std::string_view reason) noexcept;
  struct Failure {
    int rank;
    std::string reason;
  };
  std::optional<Failure> failure() const;

 private:
  std::unique_ptr<ThreadHubState> state_;
};

}  // namespace tera
