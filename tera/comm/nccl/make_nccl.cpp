#include "tera/comm/nccl/make_nccl.h"

#include "tera/base/error.h"
#include "tera/comm/control/run_process.h"

namespace tera::nccl {

int run_process(const ProcessOptions& options, FunctionRef<void(RankHandle&)> body,
                FunctionRef<void(std::string_view)> report) {
  const auto join_checked = [&](control::Control& control, Ops& ops) {
    require_user(ops.traits().asynchronous,
                 "processes that meet over MASTER_ADDR need a GPU each (dist.device=cuda); on the CPU, start them with "
                 "mpirun -n N or srun --mpi=pmix, or one process alone, whose ranks are threads: --ranks N");
    return join(control, ops, options);
  };
  return control::run_process(
      {.address = options.address, .rank = options.rank, .size = options.size, .timeout = options.timeout}, body,
      report, join_checked);
}

}  // namespace tera::nccl
