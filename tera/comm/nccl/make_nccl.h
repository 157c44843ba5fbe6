#pragma once
// Entry point of ranks that are processes with a GPU each: the control plane on the host and NCCL for tensors. Built
// without NCCL, no_nccl.cpp has the same functions, which fail.

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "tera/base/function_ref.h"
#include "tera/comm/control/control.h"
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

// Runs body for the rank that this process is, as control::run_process does, and returns the exit status.
int run_process(const ProcessOptions& options, FunctionRef<void(RankHandle&)> body,
                FunctionRef<void(std::string_view)> report);

// The world over NCCL of ranks that have a control plane, for an Ops on a GPU; all ranks call it. UserError when two
// ranks are on one GPU, unless they differ in options.machine. The control plane outlives it.
std::unique_ptr<Comm> join(control::Control& control, Ops& ops, const ProcessOptions& options);

}  // namespace tera::nccl
