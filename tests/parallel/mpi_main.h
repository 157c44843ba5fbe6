#pragma once
// main() of tests that run under mpirun, where every rank runs every test: it makes this process a rank, and lets only
// the first one speak unless something is wrong.

#include "tera/comm/world.h"

namespace tera::test {

RankHandle& mpi_rank_handle();  // this process's handle while tests run

}  // namespace tera::test
