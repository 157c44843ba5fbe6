// Stubs of the functions that need NCCL, for a build without it.
#include "tera/base/error.h"
#include "tera/comm/nccl/make_nccl.h"
#include "tera/comm/nccl/nccl_info.h"

namespace tera::nccl {
namespace {

[[noreturn]] void refuse() {
  fail_user(
      "this program was built without NCCL: processes cannot have a GPU each; mpirun -n N runs N of them on CPUs, and "
      "--ranks N runs N ranks as threads");
}

}  // namespace

NcclInfo query_nccl() { return {}; }

int run_process(const ProcessOptions&, FunctionRef<void(RankHandle&)>, FunctionRef<void(std::string_view)>) {
  refuse();
}

std::unique_ptr<Comm> join(control::Control&, Ops&, const ProcessOptions&) { refuse(); }

}  // namespace tera::nccl
