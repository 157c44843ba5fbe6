#include <fmt/core.h>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/base/cores.h"
#include "tera/base/error.h"
#include "tera/comm/mpi/make_mpi.h"
#include "tera/comm/nccl/make_nccl.h"
#include "tera/config/setup.h"
#include "tera/train/backend.h"

namespace tera {
namespace {

int thread_count(const DistConfig& config) {
  return config.threads > 0 ? static_cast<int>(config.threads) : usable_cores();
}

cpu::Isa choose_isa(CpuIsa wanted) {
  if (wanted == CpuIsa::automatic) return cpu::best_isa();
  const auto isa = wanted == CpuIsa::avx512 ? cpu::Isa::avx512
                   : wanted == CpuIsa::avx2 ? cpu::Isa::avx2
                                            : cpu::Isa::baseline;
  require_user(cpu::supports(isa), "dist.cpu_isa={}: this machine runs at most {}", name_of(wanted),
               name_of(cpu::best_isa()));
  return isa;
}

bool on_gpu(DeviceChoice device) {
  return device == DeviceChoice::cuda || (device == DeviceChoice::automatic && cuda::usable());
}

// Whether tensor-parallel ranks each compute GEMMs whose results must have the same bits: all have the same rows, and
// route them, or compute gradients of replicated weights. Another kernel would sum in another order.
bool repeats_gemms(const Setup& setup) {
  const ParallelShape& parallel = setup.parallel;
  return parallel.mesh.tp > 1 && !parallel.sequence_parallel &&
         (setup.model.moe || setup.model.mla || setup.model.mtp_layers > 0);
}

Backend make_cuda_backend(const BackendOptions& options) {
  cuda::CudaParts parts =
      cuda::make_cuda({.device = cuda::device_of(options.local_rank),
                       .deterministic = options.deterministic,
                       .hopper_kernels = options.small_calls_too ? cuda::HopperKernels::wherever_supported
                                                                 : cuda::HopperKernels::where_faster,
                       .time_gemms = !options.same_kernels,
                       .tf32 = options.tf32,
                       .choices = options.kernel_choices});
  return {.name = std::move(parts.name),
          .peak_flops = parts.peak_flops,
          .device = std::move(parts.device),
          .rules = cuda::make_cuda_workspace_rules(options.deterministic),
          .ops = std::move(parts.ops)};
}

nccl::ProcessOptions process_options(const ProcessPlace& place) {
  const std::chrono::duration<double> timeout(place.timeout_seconds);
  return {.address = place.address,
          .rank = place.rank,
          .size = place.size,
          .timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout),
          .machine = place.machine,
          .no_local_rank = place.no_local_rank};
}

}  // namespace

Backend make_backend(const DistConfig& config, const BackendOptions& options) {
  if (on_gpu(config.device)) return make_cuda_backend(options);
  const int threads = thread_count(config);
  const cpu::Isa isa = choose_isa(config.cpu_isa);
  return {.name = fmt::format("cpu, {} thread{}, {}", threads, threads == 1 ? "" : "s", name_of(isa)),
          .device = std::make_unique<cpu::CpuDevice>(),
          .rules = std::make_unique<cpu::CpuWorkspaceRules>(threads),
          .ops = std::make_unique<cpu::CpuOps>(threads, isa)};
}

std::string kernel_choices_name(int rank) {
  return rank == 0 ? "kernels.json" : fmt::format("kernels.rank{}.json", rank);
}

BackendOptions backend_options(const Setup& setup, int local_rank) {
  return {.deterministic = setup.config.train.deterministic,
          .tf32 = setup.config.mixed_precision.tf32,
          .same_kernels = repeats_gemms(setup),
          .local_rank = local_rank};
}

Backend make_backend(const Setup& setup, int rank, int local_rank) {
  BackendOptions options = backend_options(setup, local_rank);
  options.kernel_choices = std::filesystem::path(setup.run_dir) / kernel_choices_name(rank);
  return make_backend(setup.config.dist, options);
}

bool has_mpi() { return mpi::built_in(); }

void run_under_mpi(const ProcessPlace& place, FunctionRef<void(RankHandle&)> body,
                   FunctionRef<void(std::string_view)> report) {
  require_user(mpi::built_in(),
               "this build has no MPI; processes with a GPU each meet without it under torchrun, or under srun where "
               "MASTER_ADDR is set to the first rank's machine; --ranks N starts ranks as threads of one process");
  cpu::CpuOps combiner(1, cpu::best_isa());
  const nccl::ProcessOptions options = process_options(place);
  const auto join_gpu = [&](control::Control& control, Ops& ops) { return nccl::join(control, ops, options); };
  if (const int status = mpi::run_process({.timeout = options.timeout, .launcher_kills = place.launcher_kills},
                                          combiner, body, report, join_gpu))
    throw AlreadyReported(status);
}

void run_without_mpi(const ProcessPlace& place, FunctionRef<void(RankHandle&)> body,
                     FunctionRef<void(std::string_view)> report) {
  if (const int status = nccl::run_process(process_options(place), body, report)) throw AlreadyReported(status);
}

std::unique_ptr<WorkspaceRules> make_workspace_rules(const Setup& setup) {
  const DistConfig& dist = setup.config.dist;
  if (on_gpu(dist.device)) return cuda::make_cuda_workspace_rules(setup.config.train.deterministic);
  return std::make_unique<cpu::CpuWorkspaceRules>(thread_count(dist));
}

std::vector<std::string> device_warnings(const DistConfig& written) {
  if (written.device != DeviceChoice::automatic || cuda::usable()) return {};
  const std::string why = cuda::why_left_aside();
  if (why.empty()) return {};
  return {fmt::format("dist.device=auto: the GPU is not used, the CPU is: {} (dist.device=cpu if that is meant)", why)};
}

RunConfig resolve_auto(RunConfig config) {
  DeviceChoice& device = config.dist.device;
  Precision& precision = config.mixed_precision.precision;
  if (device == DeviceChoice::automatic) device = on_gpu(device) ? DeviceChoice::cuda : DeviceChoice::cpu;
  if (precision == Precision::automatic) precision = device == DeviceChoice::cuda ? Precision::bf16 : Precision::fp32;
  return config;
}

}  // namespace tera
