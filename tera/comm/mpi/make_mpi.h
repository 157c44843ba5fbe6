#pragma once
// Entry point of ranks that are MPI processes, started by mpirun or srun. Built without MPI, no_mpi.cpp has the same
// functions, which fail.

#include <chrono>
#include <string_view>

#include "tera/base/function_ref.h"
#include "tera/comm/control/run_process.h"
#include "tera/comm/world.h"

namespace tera::mpi {

struct MpiOptions {
  std::chrono::milliseconds timeout{600'000};  // limit of every wait
  // The launcher kills the job as soon as one of its processes ends with a status, so that no rank calls MPI_Abort: on
  // that, the mpirun of Open MPI 4.1 breaks down or never ends in one of ten jobs.
  bool launcher_kills = false;
};

bool built_in();

// Runs body for the rank that this process is, as control::run_rank does, and returns the exit status. Where a rank
// does not end, the whole job is killed, and this does not return. `join_gpu` makes the Comm of ranks that compute on
// GPUs.
//
// Reductions are computed on the MPI thread, through `combiner`: an Ops on host memory that is used for nothing else.
// Called once per process.
int run_process(const MpiOptions& options, Ops& combiner, FunctionRef<void(RankHandle&)> body,
                FunctionRef<void(std::string_view)> report, control::Join join_gpu);

}  // namespace tera::mpi
