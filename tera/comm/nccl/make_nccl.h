#pragma once
// Entry point of ranks that are processes with a GPU each: the control plane on the host and NCCL for tensors. Built
// without NCCL, no_nccl.cpp has the same functions, which fail.

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "tera/base/function_ref.h"
#include "tera/comm/rendezvous_address.h"
#include "tera/comm/world.h"

namespace tera::nccl {

struct ProcessOptions {
  RendezvousAddress address{};
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{600'000};  // limit of every wait and of the rendezvous
  std::string machine{};                       // NCCL_HOSTID: ranks that differ in it may share a GPU
  std::string no_local_rank{};  // the variable that would have said which GPU this rank takes, where it is not set
};

bool built_in();

// Runs body for the rank that this process is, and returns the exit status of the process: 0 when all ranks are done,
// 2 when this rank threw a UserError, else 1. `report` gets this rank's own fault, "rank 2: the disk is full", and on
// the first rank which others were lost; it gets neither consequences of another rank's fault nor a fault that a lower
// rank reports in the same words. A process that cannot leave after a failure is ended, and this does not return.
int run_process(const ProcessOptions& options, FunctionRef<void(RankHandle&)> body,
                FunctionRef<void(std::string_view)> report);

// The world over NCCL for ranks that MPI started: `host` transfers host memory, through `host_ops`. All ranks call it;
// the Comm lives no longer than these. `report` gets the lines of a rank whose process is ended because it is stuck;
// all other faults are thrown.
std::unique_ptr<Comm> join_over(Comm& host, Ops& host_ops, Ops& ops, const ProcessOptions& options,
                                FunctionRef<void(std::string_view)> report);

}  // namespace tera::nccl
