#pragma once
// How many ranks there are, and how they come to be: this process alone, threads of it, or one process for each under
// mpirun, srun or torchrun. The only place of the library that reads the environment.

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "tera/base/function_ref.h"
#include "tera/comm/rendezvous_address.h"
#include "tera/comm/world.h"
#include "tera/config/sections/dist.h"

namespace tera {

// mpi: processes that find each other by MPI; tcp: by a rendezvous address in the environment, as torchrun sets it.
enum class LaunchKind : std::uint8_t { alone, threads, mpi, tcp };

struct Launch {
  LaunchKind kind = LaunchKind::alone;
  int world = 1;
  int rank = 0;                 // mpi, tcp: of this process; threads learn theirs from the RankHandle
  int local = 1;                // ranks that share this machine, as far as is known
  int local_rank = 0;           // mpi, tcp: of this process on its machine; decides which GPU it takes
  std::string no_local_rank{};  // mpi, tcp: the unset variable that should give it, where ranks share a machine
  bool launcher_kills = false;  // mpi: the launcher kills the other ranks when one has failed
  RendezvousAddress address{};  // tcp
  std::string machine{};        // NCCL_HOSTID, by which tests let ranks of one machine pass for ranks of several
  bool operator==(const Launch&) const = default;
  bool as_processes() const { return kind == LaunchKind::mpi || kind == LaunchKind::tcp; }
};

// A variable of the environment, or null.
using Environment = FunctionRef<const char*(const char* name)>;

// `ranks` is the value of --ranks. UserError for --ranks where a launcher has started ranks, and where these could not
// find each other. `has_mpi`: whether the program is built with MPI; without it, ranks of an MPI launcher rendezvous
// over TCP where they can.
Launch detect_launch(std::optional<int> ranks, Environment environment, bool has_mpi = true);
Launch detect_launch(std::optional<int> ranks);  // reads the environment of this process

// dist.threads=0 means all cores for one rank; ranks on one machine get equal shares of them.
void share_cores(DistConfig& dist, const Launch& launch);

// Runs what a process does before its ranks start, such as reading the config. Where ranks are processes all of them
// find the same mistakes there, and report them as ranks do: once.
template <class Prepare>
auto prepare_ranks(const Launch& launch, const Prepare& prepare) -> decltype(prepare());

// Runs body for each rank of this process, and returns when all are done. Faults are thrown as by run_threads; those of
// a single rank unchanged.
void run_ranks(const Launch& launch, double timeout_seconds, FunctionRef<void(RankHandle&)> body);

template <class Prepare>
auto prepare_ranks(const Launch& launch, const Prepare& prepare) -> decltype(prepare()) {
  try {
    return prepare();
  } catch (...) {
    if (!launch.as_processes()) throw;
    constexpr double report_timeout_seconds = 60;
    const std::exception_ptr mistake = std::current_exception();
    bool joined = false;
    try {
      run_ranks(launch, report_timeout_seconds, [&](RankHandle&) {
        joined = true;
        std::rethrow_exception(mistake);
      });
    } catch (...) {
      if (joined) throw;
    }
    throw;  // rethrown even where the others did not join: the mistake is what the user must mend
  }
}

}  // namespace tera
