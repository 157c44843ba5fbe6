// Stands in for mpi_info.cpp where the program is built without MPI.
#include "tera/backend/mpi/mpi_info.h"

namespace tera::mpi {

MpiInfo query_mpi() { return {}; }

}  // namespace tera::mpi
