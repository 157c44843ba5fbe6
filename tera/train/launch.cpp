#include "tera/train/launch.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "tera/base/cores.h"
#include "tera/base/error.h"
#include "tera/train/backend.h"

namespace tera {
namespace {

constexpr int max_threads = 4096;  // more than that on one machine is a slip of the finger

// The variables that launchers of MPI programs set for each process. PMIx gives no size: where Slurm starts the ranks,
// Slurm does.
struct Launcher {
  const char *size, *rank, *local, *local_rank;
};
constexpr std::array<Launcher, 4> launchers{
    Launcher{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
             "OMPI_COMM_WORLD_LOCAL_RANK"},                                                       // Open MPI
    Launcher{"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},                       // MPICH, PMI
    Launcher{"SLURM_STEP_NUM_TASKS", "PMIX_RANK", "SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"},  // srun --mpi=pmix
    Launcher{"SLURM_NTASKS", "PMIX_RANK", "SLURM_NTASKS_PER_NODE", "SLURM_LOCALID"}};
// The variables of torchrun, and of srun without MPI.
constexpr Launcher torchrun{"WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK"};
constexpr Launcher srun{"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"};
constexpr int torchruns_spare_ports = 8;

// Nothing when the variable is not set. Of Slurm's lists, such as 4(x2),1, the first number.
std::optional<int> number(Environment environment, const char* name, int least) {
  const char* const text = environment(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view all(text), digits = all.substr(0, all.find_first_of("(,"));
  int value = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  require_user(error == std::errc{} && end == digits.data() + digits.size() && value >= least && value <= max_ranks,
               "the environment has {}={}, which should be a number from {} to {}", name, all, least, max_ranks);
  return value;
}

// The launcher's variables give the local rank; where they do not and Slurm started the ranks, Slurm's do.
void find_local_rank(Launch& launch, const Launcher& launcher, Environment environment) {
  const bool is_task = number(environment, srun.rank, 0) == launch.rank &&
                       number(environment, srun.size, 1).value_or(launch.world) == launch.world;
  const auto read = [&](const char* launchers_name, const char* slurms_name, int least) {
    const std::optional<int> value = number(environment, launchers_name, least);
    return value || !is_task ? value : number(environment, slurms_name, least);
  };
  std::optional<int> local = read(launcher.local, srun.local, 1);
  if (!local && is_task) local = number(environment, "SLURM_NTASKS_PER_NODE", 1);
  const std::optional<int> local_rank = read(launcher.local_rank, srun.local_rank, 0);
  launch.local = std::min(local.value_or(1), launch.world);
  launch.local_rank = local_rank.value_or(0);
  if (!local_rank && local != 1) launch.no_local_rank = launcher.local_rank;
}

// Reads the launcher's variables; those of size and rank must be set.
Launch read_launch(const Launcher& launcher, LaunchKind kind, Environment environment) {
  const int size = *number(environment, launcher.size, 1), rank = *number(environment, launcher.rank, 0);
  require_user(rank < size, "the environment has {}={} and {}={}: ranks are numbered from 0", launcher.rank, rank,
               launcher.size, size);
  Launch launch{.kind = kind, .world = size, .rank = rank};
  find_local_rank(launch, launcher, environment);
  if (const char* machine = environment("NCCL_HOSTID")) launch.machine = machine;
  return launch;
}

// Open MPI's mpirun, of version 4 or 5, kills the job when a rank fails, unless it is configured not to. Programs under
// srun have other Open MPI variables, but not these.
bool kills_jobs(const Launcher& launcher, Environment environment) {
  const auto is_set = [&](const char* name) { return environment(name) != nullptr; };
  return &launcher == &launchers[0] && (is_set("OMPI_MCA_orte_hnp_uri") || is_set("PRTE_LAUNCHED")) &&
         !is_set("OMPI_MCA_orte_abort_on_non_zero_status") && !is_set("PRTE_MCA_state_base_error_non_zero_exit");
}

std::optional<Launch> under_mpi(Environment environment) {
  for (const Launcher& launcher : launchers)
    if (environment(launcher.size) != nullptr && environment(launcher.rank) != nullptr) {
      Launch launch = read_launch(launcher, LaunchKind::mpi, environment);
      launch.launcher_kills = kills_jobs(launcher, environment);
      return launch;
    }
  return std::nullopt;
}

// The rendezvous address of the processes of torchrun, or of srun where the user sets MASTER_ADDR. Most often torchrun
// itself listens at the port that it names (TORCHELASTIC_USE_AGENT_STORE); one of the next ports will be free.
RendezvousAddress find_rendezvous(Environment environment, std::string_view starter) {
  constexpr int default_port = 29500, last_port = 65535;
  const auto text = [&](const char* name) {
    return std::string(environment(name) == nullptr ? "" : environment(name));
  };
  RendezvousAddress address{.host = text("MASTER_ADDR")};
  require_user(
      !address.host.empty(),
      "{} started several processes, but MASTER_ADDR does not say where they meet; set it to the first rank's "
      "machine (and MASTER_PORT to a free port there), start the ranks with mpirun -n N or srun --mpi=pmix, or "
      "one process alone, whose ranks are threads: --ranks N",
      starter);
  const std::optional<int> port = number(environment, "MASTER_PORT", 1);
  require_user(!port || *port <= last_port, "the environment has MASTER_PORT={}; ports end at {}", port.value_or(0),
               last_port);
  address.port = port.value_or(default_port);
  if (text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    address.port = std::min(address.port + 1, last_port - torchruns_spare_ports);
    address.spare_ports = torchruns_spare_ports;
  }
  // Jobs without a name of their own differ by their port. torchrun's restart count is not part of the name, because
  // each machine counts its own.
  if (environment("TORCHELASTIC_RUN_ID") != nullptr)
    address.job = fmt::format("{} at {}:{}", text("TORCHELASTIC_RUN_ID"), address.host, port.value_or(default_port));
  if (address.job.empty() && environment("SLURM_JOB_ID") != nullptr)
    address.job = fmt::format("{}.{}", text("SLURM_JOB_ID"), text("SLURM_STEP_ID"));
  return address;
}

// Whether several processes were started without MPI: each alone would train for itself and overwrite the others'
// files.
bool several(Environment environment, const Launcher& launcher) {
  return environment(launcher.rank) != nullptr && number(environment, launcher.size, 1).value_or(1) > 1;
}

Launch with_rendezvous(Environment environment, const Launcher& launcher, std::string_view starter) {
  Launch launch = read_launch(launcher, LaunchKind::tcp, environment);
  launch.address = find_rendezvous(environment, starter);
  return launch;
}

std::optional<Launch> under_torchrun(Environment environment) {
  if (!several(environment, torchrun)) return std::nullopt;
  return with_rendezvous(environment, torchrun, "RANK and WORLD_SIZE are set: a launcher");
}

std::optional<Launch> under_srun(Environment environment) {
  if (environment("SLURM_STEP_ID") == nullptr || !several(environment, srun)) return std::nullopt;
  return with_rendezvous(environment, srun, "srun without MPI");
}

// Ranks of an MPI launcher, for a program without MPI: they can rendezvous over TCP if torchrun's or Slurm's variables
// number them alike. (Under mpirun, Slurm's numbers may be those of the daemons that it started.)
std::optional<Launch> without_mpi(const Launch& mpi, Environment environment) {
  if (environment("MASTER_ADDR") == nullptr) return std::nullopt;
  for (const std::optional<Launch>& other : {under_torchrun(environment), under_srun(environment)})
    if (other && other->rank == mpi.rank && other->world == mpi.world) return other;
  return std::nullopt;
}

// Launchers start launchers, and each leaves its variables behind; the one that started this process counts. torchrun
// leaves its name, and is started by srun or mpirun rather than the other way round; RANK alone may be from a shell or
// a container in which mpirun was started. A launcher of one process has started a shell, or another launcher, whose
// variables count then.
std::optional<Launch> of_several(Environment environment, bool has_mpi) {
  if (environment("TORCHELASTIC_RUN_ID") != nullptr)
    if (std::optional<Launch> launch = under_torchrun(environment)) return launch;
  const std::optional<Launch> mpi = under_mpi(environment);
  if (mpi && mpi->world > 1) {
    const std::optional<Launch> tcp = has_mpi ? std::nullopt : without_mpi(*mpi, environment);
    return tcp ? tcp : mpi;
  }
  if (std::optional<Launch> launch = under_torchrun(environment)) return launch;
  return mpi ? std::nullopt : under_srun(environment);  // one of mpirun -n 1 inside a step of several daemons is one
}

class SelfRankHandle final : public RankHandle {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Comm> join(Ops& ops) override { return make_self_comm(ops); }
};

}  // namespace

Launch detect_launch(std::optional<int> ranks, Environment environment, bool has_mpi) {
  require_user(!ranks || (*ranks >= 1 && *ranks <= max_threads), "--ranks {}: must be from 1 to {}", ranks.value_or(0),
               max_threads);
  if (const std::optional<Launch> launch = of_several(environment, has_mpi)) {
    if (ranks)
      fail_user("--ranks {}: this is already one of {} processes, each of which is a rank; leave it out", *ranks,
                launch->world);
    return *launch;
  }
  const int world = ranks.value_or(1);
  if (world == 1) return {};
  return {.kind = LaunchKind::threads, .world = world, .local = world};
}

Launch detect_launch(std::optional<int> ranks) {
  return detect_launch(
      ranks, [](const char* name) -> const char* { return std::getenv(name); }, has_mpi());
}

void share_cores(DistConfig& dist, const Launch& launch) {
  if (dist.threads == 0 && dist.device != DeviceChoice::cuda && launch.local > 1)
    dist.threads = std::max(1, usable_cores() / launch.local);
}

void run_ranks(const Launch& launch, double timeout_seconds, FunctionRef<void(RankHandle&)> body) {
  const auto timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(timeout_seconds));
  switch (launch.kind) {
    case LaunchKind::alone: {
      SelfRankHandle rank_handle;
      return body(rank_handle);
    }
    case LaunchKind::threads: return run_threads(launch.world, {.timeout = timeout}, body);
    case LaunchKind::mpi:
    case LaunchKind::tcp: {
      const auto report = [](std::string_view fault) { fmt::print(stderr, "tera: {}\n", fault); };
      const ProcessPlace place{.rank = launch.rank,
                               .size = launch.world,
                               .launcher_kills = launch.launcher_kills,
                               .address = launch.address,
                               .machine = launch.machine,
                               .no_local_rank = launch.no_local_rank,
                               .timeout_seconds = timeout_seconds};
      return launch.kind == LaunchKind::mpi ? run_under_mpi(place, body, report) : run_without_mpi(place, body, report);
    }
  }
}

}  // namespace tera
