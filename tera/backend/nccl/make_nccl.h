#pragma once
// The one door to ranks that are processes with a GPU each. What ranks tell each other on the host needs no GPU; where
// the program is built without NCCL, no_nccl.cpp answers for the rest.

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "tera/base/function_ref.h"
#include "tera/comm/meeting.h"
#include "tera/comm/world.h"

namespace tera::nccl {

struct ProcessOptions {
  Meeting meeting{};
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{600'000};  // of every wait, and until all have met
  std::string machine{};                       // NCCL_HOSTID: ranks that differ in it may share a GPU
  std::string no_local_rank{};  // the variable that would have said which GPU this rank takes, where it is not set
};

bool built_in();

// Runs body for the rank that this process is, and returns the exit status of the process: 0 when all ranks are done,
// 2 when this rank threw a UserError, else 1. `tell` gets this rank's own fault, "rank 2: the disk is full", and on the
// first rank that others were lost; what only follows from another rank's is not told, nor what a lower rank tells in
// the same words. A process that cannot leave after a failure is ended, and this does not return.
int run_process(const ProcessOptions& options, FunctionRef<void(Seat&)> body, FunctionRef<void(std::string_view)> tell);

// The world over NCCL for ranks that have met over MPI: `host` moves memory of the host, by `host_ops`. All of them
// call it; the Comm lives no longer than these. `tell` gets what a rank has to tell whose process is ended because it
// is stuck; all else is thrown.
std::unique_ptr<Comm> join_over(Comm& host, Ops& host_ops, Ops& ops, const ProcessOptions& options,
                                FunctionRef<void(std::string_view)> tell);

}  // namespace tera::nccl
