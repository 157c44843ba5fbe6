#pragma once
// The one door to ranks that are processes, started by mpirun or srun. Built without MPI, no_mpi.cpp answers it with an
// error.

#include <chrono>
#include <string_view>

#include "tera/base/function_ref.h"
#include "tera/comm/world.h"

namespace tera::mpi {

struct MpiOptions {
  std::chrono::milliseconds timeout{600'000};  // of every wait
  // The launcher kills the job as soon as a process of it ends with a status, so that nobody must ask it to by
  // MPI_Abort: at that, the mpirun of Open MPI 4.1 breaks down or never ends in one of ten jobs.
  bool launcher_kills = false;
};

bool built_in();

// Runs body for the rank that this process is, and returns the exit status of the process: 0 when all ranks are done,
// 2 when this rank threw a UserError, else 1. `tell` gets this rank's own fault, "rank 2: the disk is full"; what only
// follows from another rank's is not told, nor what a lower rank tells in the same words. Where a rank does not end,
// the whole job is killed, and this does not return.
//
// Sums are made on the thread that talks to MPI, through `combiner`: an Ops on host memory that nobody else uses.
// Called once per process.
int run_process(const MpiOptions& options, Ops& combiner, FunctionRef<void(Seat&)> body,
                FunctionRef<void(std::string_view)> tell);

}  // namespace tera::mpi
