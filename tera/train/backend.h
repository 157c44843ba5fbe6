#pragma once
// What a rank computes with. setup.cpp is the only place that names backends.

#include <filesystem>
#include <memory>

#include "tera/base/function_ref.h"
#include "tera/comm/rendezvous_address.h"
#include "tera/comm/world.h"
#include "tera/config/setup.h"
#include "tera/ops/ops.h"
#include "tera/ops/workspace.h"
#include "tera/tensor/device.h"

namespace tera {

struct Backend {
  std::string name;       // "cpu, 2 threads, avx512"
  double peak_flops = 0;  // FLOP/s of dense bf16 GEMMs, from the vendor's data sheet; 0: not known
  std::unique_ptr<Device> device;
  std::unique_ptr<WorkspaceRules> rules;
  std::unique_ptr<Ops> ops;
};

struct BackendOptions {
  bool deterministic = true, tf32 = false;
  bool same_kernels = false;             // as on the other ranks: no autotuning on a GPU
  bool small_calls_too = false;          // for tests: kernels that are profitable for large calls run small ones too
  std::filesystem::path kernel_choices;  // file of a GPU's autotuning results; empty: none
  int local_rank = 0;                    // rank among several processes on this machine: each takes the next GPU
};

Backend make_backend(const DistConfig& config, const BackendOptions& options = {});
std::string kernel_choices_name(int rank);  // kernels.json; kernels.rank3.json
// The options that the config gives a rank's backend, all but kernel_choices.
BackendOptions backend_options(const Setup& setup, int local_rank);
// The backend of the config; kernel choices are kept in the run's folder, each rank's in a file of its own.
Backend make_backend(const Setup& setup, int rank = 0, int local_rank = 0);

bool has_mpi();  // whether the program is built with MPI

// The rank that this process is, among those that a launcher started.
struct ProcessPlace {
  int rank = 0, size = 1;
  bool launcher_kills = false;  // under MPI: as in mpi::MpiOptions
  RendezvousAddress address{};  // without MPI
  std::string machine{};        // NCCL_HOSTID
  std::string no_local_rank{};  // as in Launch
  double timeout_seconds = 600;
};

// Run body for that rank; AlreadyReported when a rank failed, whose fault went to `report`. CPU ranks communicate over
// MPI, GPU ranks over NCCL.
void run_under_mpi(const ProcessPlace& place, FunctionRef<void(RankHandle&)> body,
                   FunctionRef<void(std::string_view)> report);
void run_without_mpi(const ProcessPlace& place, FunctionRef<void(RankHandle&)> body,
                     FunctionRef<void(std::string_view)> report);

// The workspace rules alone, for a plan of a machine that need not be this one.
std::unique_ptr<WorkspaceRules> make_workspace_rules(const Setup& setup);

// Resolves `auto` for this machine: dist.device, and with it mixed_precision.precision.
RunConfig resolve_auto(RunConfig config);

// Warnings for the log of a run: dist.device=auto means the CPU although there is a GPU or a driver for one. Otherwise
// none.
std::vector<std::string> device_warnings(const DistConfig& written);

}  // namespace tera
