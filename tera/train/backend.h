#pragma once
// What a rank computes with. setup.cpp is the only place that names backends.

#include <filesystem>
#include <memory>

#include "tera/base/function_ref.h"
#include "tera/comm/meeting.h"
#include "tera/comm/world.h"
#include "tera/config/setup.h"
#include "tera/ops/ops.h"
#include "tera/ops/workspace.h"
#include "tera/tensor/device.h"

namespace tera {

struct Backend {
  std::string name;       // "cpu, 2 threads, avx512"
  double peak_flops = 0;  // of dense bf16 products, from the maker's data sheet; 0: not known
  std::unique_ptr<Device> device;
  std::unique_ptr<WorkspaceRules> rules;
  std::unique_ptr<Ops> ops;
};

struct BackendOptions {
  bool deterministic = true, tf32 = false;
  bool same_kernels = false;             // as on the other ranks: a GPU chooses none by timing
  bool small_calls_too = false;          // for tests: kernels that a GPU has for large calls take small ones as well
  std::filesystem::path kernel_choices;  // where a GPU's choices by timing are kept; empty: nowhere
  int local_rank = 0;                    // of several processes on this machine: each takes the next GPU
};

Backend make_backend(const DistConfig& config, const BackendOptions& options = {});
std::string kernel_choices_name(int rank);  // kernels.json; kernels.rank3.json
// What the config asks of a rank's backend, but for where choices are kept.
BackendOptions backend_options(const Setup& setup, int local_rank);
// As the config asks; choices are kept in the run's folder, each rank's in a file of its own.
Backend make_backend(const Setup& setup, int rank = 0, int local_rank = 0);

bool has_mpi();  // the program is built with it
// UserError where so many processes cannot work together on such Ops: sums on CPUs have a limit, those of NCCL none.
void check_processes(int processes, const OpsTraits& traits);

// The rank that this process is, among those that a launcher started.
struct ProcessPlace {
  int rank = 0, size = 1;
  bool launcher_kills = false;  // with MPI: as in mpi::MpiOptions
  Meeting meeting{};            // without MPI
  std::string machine{};        // NCCL_HOSTID
  std::string no_local_rank{};  // as in Launch
  double timeout_seconds = 600;
};

// Run body for that rank; ToldError when a rank failed, whose fault went to `tell`. On the CPU ranks talk by MPI, on
// GPUs by NCCL.
void run_under_mpi(const ProcessPlace& place, FunctionRef<void(Seat&)> body, FunctionRef<void(std::string_view)> tell);
void run_without_mpi(const ProcessPlace& place, FunctionRef<void(Seat&)> body,
                     FunctionRef<void(std::string_view)> tell);

// The rules alone, for a plan of a machine that need not be this one.
std::unique_ptr<WorkspaceRules> make_workspace_rules(const Setup& setup);

// What `auto` stands for on this machine: dist.device, and with it mixed_precision.precision.
RunConfig settle(RunConfig config);

// For the log of a run: dist.device=auto means the CPU though a GPU, or a driver for one, is there. Else
// none.
std::vector<std::string> device_warnings(const DistConfig& written);

}  // namespace tera
