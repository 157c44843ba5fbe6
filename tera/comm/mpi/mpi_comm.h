#pragma once
#include <memory>

#include "tera/comm/comm.h"
#include "tera/comm/mpi/engine.h"

namespace tera::mpi {

// The Comm of a group of processes over MPI. Calls return before they are done: wait for their tickets.
std::unique_ptr<Comm> make_mpi_comm(Engine& engine, Group& group, Ops& ops);

}  // namespace tera::mpi
