#pragma once
#include <memory>

#include "tera/backend/nccl/control.h"
#include "tera/backend/nccl/make_nccl.h"
#include "tera/comm/comm.h"

namespace tera::nccl {

// The world over NCCL, for an Ops on a GPU. Two ranks on one GPU are refused, unless they differ in options.machine.
// The control plane outlives it.
std::unique_ptr<Comm> make_nccl_comm(Control& control, Ops& ops, const ProcessOptions& options);

}  // namespace tera::nccl
