#pragma once
// A rank from its start to its end, whatever moves its tensors.

#include "tera/backend/nccl/control.h"
#include "tera/backend/nccl/make_nccl.h"

namespace tera::nccl {

// How a rank that has met the others joins them with its Ops.
using Join = FunctionRef<std::unique_ptr<Comm>(Control&, Ops&)>;

int run_process(const ProcessOptions& options, FunctionRef<void(Seat&)> body, FunctionRef<void(std::string_view)> tell,
                Join join);

}  // namespace tera::nccl
