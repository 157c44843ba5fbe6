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

constexpr int most_threads = 4096;  // more than that on one machine is a slip of the finger

// What launchers of MPI programs tell each process. PMIx gives no size: where Slurm starts the ranks, Slurm does.
struct Launcher {
  const char *size, *rank, *local;
};
constexpr std::array<Launcher, 4> launchers{
    Launcher{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},  // mpirun of Open MPI
    Launcher{"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"},                                     // of MPICH; srun with PMI
    Launcher{"SLURM_STEP_NUM_TASKS", "PMIX_RANK", "SLURM_STEP_TASKS_PER_NODE"},              // srun --mpi=pmix
    Launcher{"SLURM_NTASKS", "PMIX_RANK", "SLURM_NTASKS_PER_NODE"}};

// Nothing when the variable is not set. Of Slurm's lists, such as 4(x2),1, the first number.
std::optional<int> number(Environment environment, const char* name, int least) {
  const char* const text = environment(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view all(text), digits = all.substr(0, all.find_first_of("(,"));
  int value = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  require_user(error == std::errc{} && end == digits.data() + digits.size() && value >= least && value <= most_ranks,
               "the environment has {}={}, which should be a number from {} to {}", name, all, least, most_ranks);
  return value;
}

std::optional<Launch> under_mpi(Environment environment) {
  for (const Launcher& launcher : launchers) {
    if (environment(launcher.size) == nullptr || environment(launcher.rank) == nullptr) continue;
    const int size = *number(environment, launcher.size, 1), rank = *number(environment, launcher.rank, 0);
    require_user(rank < size, "the environment has {}={} and {}={}: ranks are numbered from 0", launcher.rank, rank,
                 launcher.size, size);
    const int local = number(environment, launcher.local, 1).value_or(1);
    return Launch{.kind = LaunchKind::mpi, .world = size, .rank = rank, .local = std::min(local, size)};
  }
  return std::nullopt;
}

// Several processes that cannot reach each other: each would train on its own and overwrite the files of the rest.
void refuse_strangers(Environment environment) {
  constexpr std::string_view hint =
      "start the ranks with mpirun -n N, with srun --mpi=pmix, or as threads with --ranks N";
  const auto is_set = [&](const char* name) { return environment(name) != nullptr; };
  const auto several = [&](const char* name) { return number(environment, name, 1).value_or(1) > 1; };
  if (is_set("RANK") && is_set("MASTER_ADDR") && several("WORLD_SIZE"))
    fail_user("RANK, WORLD_SIZE and MASTER_ADDR are set, as by torchrun, which cannot start MPI; {}", hint);
  if (is_set("SLURM_STEP_ID") && several("SLURM_STEP_NUM_TASKS"))
    fail_user("srun started several processes without MPI; {}", hint);
}

class SelfSeat final : public Seat {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Comm> join(Ops& ops) override { return make_self_comm(ops); }
};

}  // namespace

Launch detect_launch(std::optional<int> ranks, Environment environment) {
  require_user(!ranks || (*ranks >= 1 && *ranks <= most_threads), "--ranks {}: must be from 1 to {}", ranks.value_or(0),
               most_threads);
  const std::optional<Launch> mpi = under_mpi(environment);
  if (mpi && mpi->world > 1) {
    if (ranks)
      fail_user("--ranks {}: this is already one of {} processes, each of which is a rank; leave it out", *ranks,
                mpi->world);
    return *mpi;
  }
  if (!mpi) refuse_strangers(environment);
  const int world = ranks.value_or(1);
  if (world == 1) return {};
  return {.kind = LaunchKind::threads, .world = world, .local = world};
}

Launch detect_launch(std::optional<int> ranks) {
  return detect_launch(ranks, [](const char* name) -> const char* { return std::getenv(name); });
}

void share_cores(DistConfig& dist, const Launch& launch) {
  if (dist.threads == 0 && dist.device != DeviceChoice::cuda && launch.local > 1)
    dist.threads = std::max(1, usable_cores() / launch.local);
}

void run_ranks(const Launch& launch, double timeout_seconds, FunctionRef<void(Seat&)> body) {
  const auto timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(timeout_seconds));
  switch (launch.kind) {
    case LaunchKind::alone: {
      SelfSeat seat;
      return body(seat);
    }
    case LaunchKind::threads: return run_threads(launch.world, {.timeout = timeout}, body);
    case LaunchKind::mpi:
      require_user(launch.world <= static_cast<int>(CombineArgs::most_sources),
                   "{} processes were started; sums over ranks that are processes take at most {}", launch.world,
                   CombineArgs::most_sources);
      return run_as_process(timeout_seconds, body,
                            [](std::string_view fault) { fmt::print(stderr, "tera: {}\n", fault); });
  }
}

}  // namespace tera
