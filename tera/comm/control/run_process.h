#pragma once
// Runs the rank that a process is, from the rendezvous to the exit status, over anything that moves tensors.

#include <memory>
#include <string_view>

#include "tera/base/function_ref.h"
#include "tera/comm/control/control.h"
#include "tera/comm/world.h"

namespace tera::control {

// Makes the Comm of a rank; all ranks call it.
using Join = FunctionRef<std::unique_ptr<Comm>(Control&, Ops&)>;
// Whether nothing reads or writes memory of this rank any more, when its work is over.
using TransfersOver = FunctionRef<bool()>;

struct ProcessEnd {
  int status = 0;  // 0 when all ranks are done, 2 when this rank threw a UserError, else 1
  JobEnd job{};
};

// Runs body for this rank and returns when all are done. `report` gets this rank's own fault, "rank 2: the disk is
// full", and on the first rank which others were lost; it gets neither consequences of another rank's fault nor a fault
// that a lower rank reports in the same words. A process that cannot leave after a failure is ended, and this does not
// return.
ProcessEnd run_rank(Control& control, FunctionRef<void(RankHandle&)> body, FunctionRef<void(std::string_view)> report,
                    Join join, TransfersOver transfers_over);

// The rendezvous first. Returns the exit status.
int run_process(const RendezvousOptions& options, FunctionRef<void(RankHandle&)> body,
                FunctionRef<void(std::string_view)> report, Join join);

}  // namespace tera::control
