#pragma once
#include <memory>

#include "tera/backend/nccl/control.h"
#include "tera/comm/comm.h"

namespace tera::nccl {

// The world over NCCL, for an Ops on a GPU. machine: what ranks of one machine have in common, as NCCL_HOSTID says it;
// two of them on one GPU are refused. The control plane outlives it.
std::unique_ptr<Comm> make_nccl_comm(Control& control, Ops& ops, const std::string& machine);

}  // namespace tera::nccl
