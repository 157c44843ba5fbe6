#pragma once
#include <memory>

#include "tera/comm/comm.h"
#include "tera/comm/control/control.h"
#include "tera/comm/nccl/make_nccl.h"

namespace tera::nccl {

using control::Control;

// The world over NCCL, for an Ops on a GPU. UserError when two ranks are on one GPU, unless they differ in
// options.machine. The control plane outlives it.
std::unique_ptr<Comm> make_nccl_comm(Control& control, Ops& ops, const ProcessOptions& options);

}  // namespace tera::nccl
