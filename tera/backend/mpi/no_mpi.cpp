// Stands in for the other files where the program is built without MPI.
#include "tera/backend/mpi/make_mpi.h"
#include "tera/backend/mpi/mpi_info.h"
#include "tera/base/error.h"

namespace tera::mpi {

MpiInfo query_mpi() { return {}; }

bool built_in() { return false; }

int run_process(const MpiOptions&, Ops&, FunctionRef<void(Seat&)>, FunctionRef<void(std::string_view)>) {
  fail_user(
      "this program was built without MPI: it cannot run as one of several processes; --ranks N runs N ranks as "
      "threads");
}

}  // namespace tera::mpi
