// How many ranks there are, from what launchers leave in the environment.

#include "tera/train/launch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/base/cores.h"
#include "tera/base/error.h"
#include "tera/train/backend.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using Variables = std::map<std::string, std::string>;

Launch detect(const Variables& variables, std::optional<int> ranks = {}, bool has_mpi = true) {
  const auto find = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  return detect_launch(ranks, find, has_mpi);
}

void expect_refused(const Variables& variables, std::optional<int> ranks, std::string_view words) {
  const std::string message = message_of<UserError>([&] { detect(variables, ranks); });
  EXPECT_TRUE(contains(message, words)) << message;
}

const Variables open_mpi{{"OMPI_COMM_WORLD_SIZE", "8"},
                         {"OMPI_COMM_WORLD_RANK", "5"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
const Variables torchrun{{"RANK", "1"},           {"WORLD_SIZE", "8"},         {"MASTER_ADDR", "node0"},
                         {"MASTER_PORT", "4000"}, {"LOCAL_RANK", "1"},         {"LOCAL_WORLD_SIZE", "4"},
                         {"NCCL_HOSTID", "here"}, {"TORCHELASTIC_RUN_ID", "x"}};
const Variables srun{{"SLURM_STEP_ID", "3"},  {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_NUM_TASKS", "16"},
                     {"SLURM_PROCID", "9"},   {"SLURM_LOCALID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "8(x2)"},
                     {"MASTER_ADDR", "node0"}};

Variables operator+(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(DetectLaunch, AloneOrAsThreads) {
  EXPECT_EQ(detect({}), Launch{});
  EXPECT_EQ(detect({}, 1), Launch{});
  EXPECT_EQ(detect({}, 6), (Launch{.kind = LaunchKind::threads, .world = 6, .local = 6}));
  for (int wrong : {0, -1, 4097}) expect_refused({}, wrong, "must be from 1 to 4096");
}

TEST(DetectLaunch, ProcessesOfMpi) {
  EXPECT_EQ(detect(open_mpi), (Launch{.kind = LaunchKind::mpi, .world = 8, .rank = 5, .local = 4, .local_rank = 1}));
  for (const char* of_mpirun : {"OMPI_MCA_orte_hnp_uri", "PRTE_LAUNCHED"}) {
    Variables variables = open_mpi;
    variables[of_mpirun] = "1";
    Launch expected = detect(open_mpi);
    expected.launcher_kills = true;
    EXPECT_EQ(detect(variables), expected);
    variables["OMPI_MCA_orte_abort_on_non_zero_status"] = "0";
    EXPECT_EQ(detect(variables), detect(open_mpi));
  }
  EXPECT_FALSE(detect({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"OMPI_MCA_orte_hnp_uri", "left over"}}).launcher_kills);
  EXPECT_EQ(detect({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"}}),
            (Launch{.kind = LaunchKind::mpi, .world = 2, .rank = 1, .local = 2, .local_rank = 1}));
  const Variables pmix{{"PMIX_RANK", "7"},     {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "9"},
                       {"SLURM_NTASKS", "20"}, {"SLURM_LOCALID", "3"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2),1"}};
  EXPECT_EQ(detect(pmix), (Launch{.kind = LaunchKind::mpi, .world = 9, .rank = 7, .local = 4, .local_rank = 3}));
  EXPECT_EQ(detect({{"PMIX_RANK", "2"}, {"SLURM_NTASKS", "3"}, {"SLURM_LOCALID", "2"}}),
            (Launch{.kind = LaunchKind::mpi, .world = 3, .rank = 2, .local_rank = 2}));
}

// mpirun in a shell, a container or a batch script whose variables say something else.
TEST(DetectLaunch, MpirunAmongVariablesOfOthers) {
  EXPECT_EQ(detect(open_mpi + Variables{{"RANK", "3"}, {"WORLD_SIZE", "64"}, {"MASTER_ADDR", "node9"}}),
            detect(open_mpi));
  const Variables batch{{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "16"},  {"SLURM_PROCID", "0"},
                        {"SLURM_LOCALID", "0"}, {"SLURM_NNODES", "2"},   {"SLURM_NTASKS_PER_NODE", "8"},
                        {"SLURM_NODEID", "0"},  {"MASTER_ADDR", "node0"}};
  EXPECT_EQ(detect(open_mpi + batch), detect(open_mpi));
  const Variables daemons{{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}};
  EXPECT_EQ(detect(open_mpi + batch + daemons), detect(open_mpi));
  EXPECT_EQ(detect(open_mpi + batch + daemons, {}, /*has_mpi=*/false), detect(open_mpi)) << "not a daemon's place";
  EXPECT_EQ(detect(Variables{{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}} + batch + daemons), Launch{});
}

// torchrun on every node, started by a launcher whose variables reach the ranks.
TEST(DetectLaunch, TorchrunInsideOfAnother) {
  const Launch expected = detect(torchrun);
  EXPECT_EQ(expected.kind, LaunchKind::tcp);
  const Variables step{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NTASKS", "2"}};
  for (const char* nodes : {"1", "2"}) {
    const Variables pmix = step + Variables{{"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_TASKS", nodes}};
    const Variables pmi2 = pmix + Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", nodes}};
    const Variables mpirun{{"OMPI_COMM_WORLD_SIZE", nodes}, {"OMPI_COMM_WORLD_RANK", "0"}};
    for (const Variables& outer : {pmix, pmi2, mpirun}) {
      EXPECT_EQ(detect(torchrun + outer), expected) << nodes << " nodes";
      EXPECT_EQ(detect(torchrun + outer, {}, /*has_mpi=*/false), expected) << nodes << " nodes";
    }
  }
  // A launcher that sets RANK, inside of a launcher of one process.
  const Variables one{{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}};
  EXPECT_EQ(detect(without(torchrun, "TORCHELASTIC_RUN_ID") + one).world, 8);
  // torchrun of one, as a shell: mpirun inside of it is the launcher.
  EXPECT_EQ(detect(open_mpi + torchrun + Variables{{"WORLD_SIZE", "1"}, {"RANK", "0"}}).kind, LaunchKind::mpi);
}

// Ranks of MPI where the program has none: their rendezvous is over TCP where the environment gives the machine.
TEST(DetectLaunch, RanksOfMpiWithoutMpi) {
  const Variables pmix = srun + Variables{{"PMIX_RANK", "9"}};
  const Variables pmi2 = srun + Variables{{"PMI_RANK", "9"}, {"PMI_SIZE", "16"}};
  for (const Variables& launcher : {pmix, pmi2}) {
    EXPECT_EQ(detect(launcher).kind, LaunchKind::mpi);
    EXPECT_EQ(detect(launcher, {}, /*has_mpi=*/false), detect(srun));
    EXPECT_EQ(detect(without(launcher, "MASTER_ADDR"), {}, /*has_mpi=*/false).kind, LaunchKind::mpi)
        << "and is refused";
  }
  const Variables by_hand{{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node0"}};
  EXPECT_EQ(detect(open_mpi + by_hand, {}, /*has_mpi=*/false), detect(by_hand));
  EXPECT_EQ(detect(open_mpi, {}, /*has_mpi=*/false).kind, LaunchKind::mpi);
}

TEST(DetectLaunch, RanksAsThreadsOfAProcessThatIsOne) {
  expect_refused(open_mpi, 2, "--ranks 2: this is already one of 8 processes");
  // One process needs no others: an interactive shell under srun, for example.
  const Variables single{{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}};
  EXPECT_EQ(detect(single), Launch{});
  EXPECT_EQ(detect(single, 3).world, 3);
}

TEST(DetectLaunch, ProcessesOfTorchrun) {
  Launch expected{.kind = LaunchKind::tcp, .world = 8, .rank = 1, .local = 4, .local_rank = 1};
  expected.address = {.host = "node0", .port = 4000, .spare_ports = 0, .job = "x at node0:4000"};
  expected.machine = "here";
  EXPECT_EQ(detect(torchrun), expected);
  Variables agent = torchrun;  // torchrun itself listens at its port
  agent["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(detect(agent).address,
            (RendezvousAddress{.host = "node0", .port = 4001, .spare_ports = 8, .job = "x at node0:4000"}));
  agent["TORCHELASTIC_RESTART_COUNT"] = "3";  // each torchrun counts for itself: one that was replaced begins anew
  EXPECT_EQ(detect(agent).address.job, "x at node0:4000");
  agent["MASTER_PORT"] = "65535";
  EXPECT_LE(detect(agent).address.port + detect(agent).address.spare_ports, 65535);
  EXPECT_EQ(detect(without(torchrun, "MASTER_PORT")).address.port, 29500);
}

TEST(DetectLaunch, ProcessesOfSrun) {
  Launch expected{.kind = LaunchKind::tcp, .world = 16, .rank = 9, .local = 8, .local_rank = 1};
  expected.address = {.host = "node0", .port = 29500, .spare_ports = 0, .job = "77.3"};
  EXPECT_EQ(detect(srun), expected);
}

// The GPU of a rank: where its launcher does not give one and Slurm started the same ranks, it is Slurm's.
TEST(DetectLaunch, TheRankOnAMachine) {
  const Variables by_hand{{"RANK", "9"}, {"WORLD_SIZE", "16"}, {"MASTER_ADDR", "node0"}};
  const Variables pmi2{{"PMI_RANK", "9"}, {"PMI_SIZE", "16"}};
  for (const Variables& launcher : {by_hand, pmi2}) {
    const Launch launch = detect(srun + launcher);
    EXPECT_EQ(launch.world, 16);
    EXPECT_EQ(launch.local, 8);
    EXPECT_EQ(launch.local_rank, 1);
    EXPECT_EQ(launch.no_local_rank, "");
  }
  const Launch older =
      detect(without(srun, "SLURM_STEP_TASKS_PER_NODE") + pmi2 + Variables{{"SLURM_NTASKS_PER_NODE", "4"}});
  EXPECT_EQ(older.local, 4);
  // Ranks of another launcher inside of a task.
  for (const Variables& other : {Variables{{"SLURM_PROCID", "1"}}, Variables{{"SLURM_STEP_NUM_TASKS", "32"}}}) {
    const Launch launch = detect(srun + by_hand + other);
    EXPECT_EQ(launch.local, 1);
    EXPECT_EQ(launch.no_local_rank, "LOCAL_RANK");
  }
}

TEST(DetectLaunch, ARankOnAMachineThatNobodyKnows) {
  const Launch launch = detect(without(torchrun, "LOCAL_RANK"));
  EXPECT_EQ(launch.local_rank, 0);
  EXPECT_EQ(launch.no_local_rank, "LOCAL_RANK");
  EXPECT_EQ(detect(without(open_mpi, "OMPI_COMM_WORLD_LOCAL_RANK")).no_local_rank, "OMPI_COMM_WORLD_LOCAL_RANK");
  EXPECT_EQ(detect(without(torchrun, "LOCAL_RANK") + Variables{{"LOCAL_WORLD_SIZE", "1"}}).no_local_rank, "")
      << "a rank that has its machine for itself needs none";
}

TEST(DetectLaunch, ProcessesWithoutARendezvous) {
  const std::string hint = "set it to the first rank's machine";
  expect_refused(without(torchrun, "MASTER_ADDR"), {}, hint);
  expect_refused(without(srun, "MASTER_ADDR"), {}, hint);
  expect_refused(without(srun, "MASTER_ADDR"), {},
                 "mpirun -n N or srun --mpi=pmix, or one process alone, whose ranks are threads: --ranks N");
  expect_refused(torchrun, 2, "--ranks 2: this is already one of 8 processes");
  Variables variables = torchrun;
  variables["RANK"] = "8";
  expect_refused(variables, {}, "RANK=8 and WORLD_SIZE=8: ranks are numbered from 0");
  variables = torchrun;
  variables["MASTER_PORT"] = "70000";
  expect_refused(variables, {}, "MASTER_PORT=70000; ports end at 65535");
  variables["MASTER_PORT"] = "http";
  expect_refused(variables, {}, "MASTER_PORT=http, which should be a number");
  Variables single = torchrun;
  single["WORLD_SIZE"] = "1";
  EXPECT_EQ(detect(single), Launch{});
  // An allocation alone starts nothing.
  EXPECT_EQ(detect({{"SLURM_NTASKS", "16"}}, 4).world, 4);
  EXPECT_EQ(detect({{"WORLD_SIZE", "garbage"}}), Launch{});
}

TEST(DetectLaunch, NumbersThatAreNone) {
  for (const char* wrong : {"", "x", "0", "-2", "2x", "99999999999"}) {
    Variables variables = open_mpi;
    variables["OMPI_COMM_WORLD_SIZE"] = wrong;
    expect_refused(variables, {}, "should be a number from 1 to 1048576");
  }
  expect_refused({{"PMI_SIZE", "2"}, {"PMI_RANK", "2"}}, {}, "numbered from 0");
}

TEST(ShareCores, AmongTheRanksOfAMachine) {
  const auto threads = [](std::int64_t given, const Launch& launch, DeviceChoice device = DeviceChoice::cpu) {
    DistConfig dist{.device = device, .threads = given};
    share_cores(dist, launch);
    return dist.threads;
  };
  const Launch two{.kind = LaunchKind::threads, .world = 2, .local = 2};
  EXPECT_EQ(threads(0, {}), 0);
  EXPECT_EQ(threads(0, two), std::max(1, usable_cores() / 2));
  EXPECT_EQ(threads(0, {.kind = LaunchKind::threads, .world = 4000, .local = 4000}), 1);
  EXPECT_EQ(threads(3, two), 3);
  EXPECT_EQ(threads(0, two, DeviceChoice::cuda), 0);
}

TEST(RunRanks, StartsEveryRankOnce) {
  for (int world : {1, 3}) {
    std::mutex mutex;
    std::set<int> seen;
    int calls = 0;
    run_ranks(detect({}, world), 30, [&](RankHandle& rank_handle) {
      cpu::CpuOps ops(1, cpu::best_isa());
      const auto comm = rank_handle.join(ops);
      EXPECT_EQ(rank_handle.size(), world);
      EXPECT_EQ(comm->size(), world);
      EXPECT_EQ(comm->rank(), rank_handle.rank());
      comm->barrier();
      const std::lock_guard lock(mutex);
      seen.insert(rank_handle.rank());
      ++calls;
    });
    EXPECT_EQ(calls, world);
    EXPECT_EQ(static_cast<int>(seen.size()), world);
  }
}

// The CPU's reduction is limited to so many ranks; NCCL has no such limit.
TEST(RunRanks, OnlyOnCpusTheNumberOfProcessesIsLimited) {
  const OpsTraits cpu = cpu::CpuOps(1, cpu::best_isa()).traits(), gpu{.asynchronous = true};
  check_processes(256, cpu);
  const std::string message = message_of<UserError>([&] { check_processes(257, cpu); });
  EXPECT_TRUE(contains(message, "257 processes were started; on CPUs (dist.device=cpu) at most 256")) << message;
  check_processes(257, gpu);
  check_processes(16384, gpu);
}

TEST(RunRanks, TheTimeoutIsThatOfEveryWait) {
  const std::string message = message_of<Error>([] {
    run_ranks(detect({}, 2), 0.25, [](RankHandle& rank_handle) {
      cpu::CpuOps ops(1, cpu::best_isa());
      const auto comm = rank_handle.join(ops);
      if (rank_handle.rank() == 0) comm->barrier();
    });
  });
  EXPECT_TRUE(contains(message, "rank 1 did not come")) << message;
}

}  // namespace
}  // namespace tera::test
