#pragma once
// A Comm that owns its control plane, for ranks whose caller reports faults; only those of a rank that is stuck go to
// `report`.

#include <memory>
#include <string_view>

#include "tera/base/function_ref.h"
#include "tera/comm/comm.h"
#include "tera/comm/control/control.h"

namespace tera::nccl {

using control::Control;
using control::ControlOptions;
using control::Links;

// `join` makes the inner Comm. When it throws, the reason is reported to the other ranks.
std::unique_ptr<Comm> make_owning_comm(Links links, const ControlOptions& options,
                                       FunctionRef<void(std::string_view)> report,
                                       FunctionRef<std::unique_ptr<Comm>(Control&)> join);

}  // namespace tera::nccl
