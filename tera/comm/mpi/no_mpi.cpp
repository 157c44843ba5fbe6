// Stubs of this folder's functions, for a build without MPI.
#include "tera/base/error.h"
#include "tera/comm/mpi/make_mpi.h"
#include "tera/comm/mpi/mpi_info.h"

namespace tera::mpi {

MpiInfo query_mpi() { return {}; }

bool built_in() { return false; }

int run_process(const MpiOptions&, Ops&, FunctionRef<void(RankHandle&)>, FunctionRef<void(std::string_view)>,
                control::Join) {
  fail_user(
      "this program was built without MPI: it cannot run as one of several processes; --ranks N runs N ranks as "
      "threads");
}

}  // namespace tera::mpi
