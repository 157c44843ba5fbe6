#pragma once
// Ranks as threads of one process. They read each other's memory directly, each through its own Ops: on the CPU, or on
// one GPU that all of them use. thread_group.h has their synchronization.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tera/comm/comm.h"

namespace tera {

struct ThreadCommOptions {
  std::chrono::milliseconds timeout{600'000};  // limit of every wait
};

class ThreadCoordinatorState;

// Owns the world and every group split from it, so it outlives all their Comms.
class ThreadCoordinator {
 public:
  explicit ThreadCoordinator(int ranks, const ThreadCommOptions& options = {});
  ~ThreadCoordinator();
  ThreadCoordinator(const ThreadCoordinator&) = delete;
  ThreadCoordinator& operator=(const ThreadCoordinator&) = delete;

  // The world as `rank` sees it, working through `ops`; each rank joins once, on its own thread.
  std::unique_ptr<Comm> join(int rank, Ops& ops);

  // Ends all waits of ranks, present and future ones. The first call counts.
  void abort(int rank, std::string_view reason) noexcept;
  struct Failure {
    int rank;
    std::string reason;
  };
  std::optional<Failure> failure() const;

 private:
  std::unique_ptr<ThreadCoordinatorState> state_;
};

}  // namespace tera
