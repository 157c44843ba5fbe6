#pragma once
#include <memory>

#include "tera/backend/mpi/engine.h"
#include "tera/comm/comm.h"

namespace tera::mpi {

// One end of a group of processes. Calls return before they are done: wait for their tickets.
std::unique_ptr<Comm> make_mpi_comm(Engine& engine, Group& group, Ops& ops);

}  // namespace tera::mpi
