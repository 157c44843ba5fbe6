#pragma once
// A Comm with the control plane that it needs, for ranks whose faults somebody else tells; but for those of a rank that
// is stuck, which `tell` gets.

#include <memory>
#include <string_view>

#include "tera/backend/nccl/control.h"
#include "tera/base/function_ref.h"
#include "tera/comm/comm.h"

namespace tera::nccl {

// `join` makes the Comm itself. When it throws, the others hear why.
std::unique_ptr<Comm> make_owning_comm(Links links, const ControlOptions& options,
                                       FunctionRef<void(std::string_view)> tell,
                                       FunctionRef<std::unique_ptr<Comm>(Control&)> join);

}  // namespace tera::nccl
