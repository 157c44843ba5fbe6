#pragma once
// How many ranks there are, and how they come to be: this process alone, threads of it, or one process for each under
// mpirun, srun or torchrun. The only place of the library that reads the environment.

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "tera/base/function_ref.h"
#include "tera/comm/meeting.h"
#include "tera/comm/world.h"
#include "tera/config/dist.h"

namespace tera {

// mpi: processes that find each other by MPI; tcp: by a meeting place that the environment names, as torchrun does.
enum class LaunchKind : std::uint8_t { alone, threads, mpi, tcp };

struct Launch {
  LaunchKind kind = LaunchKind::alone;
  int world = 1;
  int rank = 0;                 // mpi, tcp: of this process; the others learn it from their Seat
  int local = 1;                // ranks that share this machine, as far as is known
  int local_rank = 0;           // mpi, tcp: of this process among these; says which GPU it takes
  std::string no_local_rank{};  // mpi, tcp: the variable that would say it, where several share a machine and none does
  bool launcher_kills = false;  // mpi: ... the other ranks when one has ended with a fault
  Meeting meeting{};            // tcp
  std::string machine{};        // NCCL_HOSTID, by which tests let ranks of one machine pass for ranks of several
  bool operator==(const Launch&) const = default;
  bool as_processes() const { return kind == LaunchKind::mpi || kind == LaunchKind::tcp; }
};

// A variable of the environment, or null.
using Environment = FunctionRef<const char*(const char* name)>;

// `ranks` is what --ranks says. A UserError for --ranks where a launcher has started ranks, and where these could not
// find each other. `has_mpi`: the program is built with it; without, ranks of MPI meet as others do where they can.
Launch detect_launch(std::optional<int> ranks, Environment environment, bool has_mpi = true);
Launch detect_launch(std::optional<int> ranks);  // of this process

// dist.threads=0 is all cores for one rank; ranks on one machine share them.
void share_cores(DistConfig& dist, const Launch& launch);

// What a process does before its ranks start, such as reading the config. Where ranks are processes all find the same
// mistakes there, and tell them as ranks do: once.
template <class Prepare>
auto prepare_ranks(const Launch& launch, const Prepare& prepare) -> decltype(prepare());

// Runs body for each rank of this process, and returns when all are done. Faults are thrown as run_threads does; alone,
// as they are.
void run_ranks(const Launch& launch, double timeout_seconds, FunctionRef<void(Seat&)> body);

template <class Prepare>
auto prepare_ranks(const Launch& launch, const Prepare& prepare) -> decltype(prepare()) {
  try {
    return prepare();
  } catch (...) {
    if (!launch.as_processes()) throw;
    constexpr double until_all_know = 60;
    const std::exception_ptr mistake = std::current_exception();
    bool met = false;
    try {
      run_ranks(launch, until_all_know, [&](Seat&) {
        met = true;
        std::rethrow_exception(mistake);
      });
    } catch (...) {
      if (met) throw;
    }
    throw;  // also where the others did not come: the mistake is what there is to mend
  }
}

}  // namespace tera
