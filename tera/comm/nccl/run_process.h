#pragma once
// Runs a rank that is a process from the rendezvous to the exit status, over any backend for tensors.

#include "tera/comm/control/control.h"
#include "tera/comm/nccl/make_nccl.h"

namespace tera::nccl {

using control::Control;

// Makes the Comm of a rank after the rendezvous.
using Join = FunctionRef<std::unique_ptr<Comm>(Control&, Ops&)>;

int run_process(const ProcessOptions& options, FunctionRef<void(RankHandle&)> body,
                FunctionRef<void(std::string_view)> report, Join join);

}  // namespace tera::nccl
