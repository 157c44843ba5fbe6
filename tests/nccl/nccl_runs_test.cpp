// The real program as several processes with a GPU, as torchrun starts them, or srun: it trains as one rank does, the
// same way again with the same bits, and it ends when a rank is killed or stopped, with its name.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/comm/nccl/nccl_info.h"
#include "tests/end_to_end/program.h"
#include "tests/support/paths.h"
#include "tests/support/start_ranks.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Arguments = std::vector<std::string>;

const std::string config = source_path("configs/tests/tiny.yaml");
const Arguments tp2{"dist.tensor_model_parallel_size=2"}, pp2{"dist.pipeline_model_parallel_size=2"};

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class NcclRuns : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::usable() && !nccl::query_nccl().version.empty()) return;
    if (gpus_are_emulated) FAIL() << "the emulated GPU, or the stand-in for NCCL, is not found";
    GTEST_SKIP() << "no GPU, or no NCCL";
  }
  Arguments train(const std::string& name, const Arguments& more) const {
    return Arguments{"train", config, "run.dir=" + (folder_ / name).string(), "dist.device=cuda",
                     "mixed_precision.precision=fp32"} +
           more;
  }
  std::unique_ptr<RankProcesses> start(int ranks, const std::string& name, const Arguments& more,
                                       const Arguments& environment = {}, Starter starter = Starter::torchrun) const {
    const fs::path said = folder_ / (name + ".said");
    fs::create_directories(said);
    return std::make_unique<RankProcesses>(
        RankProcesses::Options{.ranks = ranks,
                               .command = Arguments{paths::program} + train(name, more),
                               .environment = environment,
                               .folder = said.string(),
                               .starter = starter});
  }
  void run(int ranks, const std::string& name, const Arguments& more, Starter starter = Starter::torchrun) const {
    const auto processes = start(ranks, name, more, {}, starter);
    ASSERT_TRUE(processes->wait(120s)) << "not done after 120 s:\n" << processes->all_output();
    for (int rank = 0; rank < ranks; ++rank) ASSERT_EQ(processes->status(rank), 0) << processes->all_output();
  }
  void expect_like_alone(const std::string& name, const Arguments& keys = {"loss", "eval_loss", "grad_norm"}) const {
    for (const std::string& key : keys) {
      const Arguments alone = column(folder_ / "alone", key), several = column(folder_ / name, key);
      ASSERT_EQ(alone.size(), several.size()) << name;
      ASSERT_FALSE(alone.empty());
      for (std::size_t i = 0; i < alone.size(); ++i)
        EXPECT_NEAR(std::stod(several[i]), std::stod(alone[i]), 3e-5 * std::stod(alone[i]))
            << name << ", " << key << " at line " << i;
    }
  }
  void train_on_one(const std::string& name, const Arguments& more) const {
    std::string line;
    for (const std::string& word : train(name, more)) line += word + " ";
    const Outcome outcome = run_program(line);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
  }
  void train_alone() const { train_on_one("alone", {}); }
  // Trains on four ranks until all are at it, and sends one of them a signal.
  std::unique_ptr<RankProcesses> train_and_signal(int rank, int signal, const Arguments& more = {}) const {
    auto processes =
        start(4, "endless", tp2 + pp2 + Arguments{"train.train_iters=1000000", "train.eval_iters=0"} + more);
    wait_for_first_loss(*processes);
    processes->send_signal(rank, signal);
    return processes;
  }
  void wait_for_first_loss(const RankProcesses& processes) const {
    for (int i = 0; i < 1200 && column(folder_ / "endless", "loss").empty(); ++i) std::this_thread::sleep_for(50ms);
    EXPECT_FALSE(column(folder_ / "endless", "loss").empty()) << processes.all_output();
  }

  TempFolder folder_;
};

TEST_F(NcclRuns, TrainLikeOneRank) {
  train_alone();
  run(2, "dp2", {});
  expect_like_alone("dp2");
  run(2, "tp2", tp2);
  expect_like_alone("tp2");
  run(4, "tp2pp2", tp2 + pp2, Starter::srun);
  expect_like_alone("tp2pp2");
}

// A checkpoint that four processes saved is resumed by two, and by one, with the results of one rank.
TEST_F(NcclRuns, GoOnInAnotherLayout) {
  const Arguments saved{"checkpoint.save=" + (folder_ / "saved").string()};
  const auto until = [](int step) {
    return Arguments{fmt::format("train.train_iters={}", step), "scheduler.lr_decay_iters=10", "train.eval_iters=0"};
  };
  run(4, "parts", tp2 + pp2 + saved + until(4));
  run(2, "parts", tp2 + saved + until(7));
  train_on_one("parts", saved + until(10));
  EXPECT_EQ(column(folder_ / "parts", "loss").size(), 10u);
  train_on_one("alone", until(10));
  expect_like_alone("parts", {"loss", "grad_norm"});
}

TEST_F(NcclRuns, TheSameBitsAgain) {
  const Arguments layout = tp2 + Arguments{"ddp.data_parallel_sharding_strategy=optim_grads_params"};
  run(4, "first", layout);
  fs::create_directories(folder_ / "second");
  for (const auto& entry : fs::directory_iterator(folder_ / "first"))  // the first run's kernel choices
    if (entry.path().filename().string().starts_with("kernels")) fs::copy(entry.path(), folder_ / "second");
  run(4, "second", layout);
  for (const char* key : {"loss", "eval_loss", "grad_norm"})
    EXPECT_EQ(column(folder_ / "first", key), column(folder_ / "second", key)) << key;
}

// Calls of every kind of group run beside the computation, as the profile shows; how much of each is luck on a GPU that
// ranks share, that some of each is not.
TEST_F(NcclRuns, CallsOverlapWithWork) {
  const Arguments large{"model.num_layers=8",          "model.hidden_size=1024",         "model.ffn_hidden_size=4096",
                        "model.num_attention_heads=8", "train.seq_length=1024",          "train.micro_batch_size=2",
                        "train.global_batch_size=16",  "mixed_precision.precision=bf16", "dist.device=cuda"};
  struct Case {
    Arguments layout, calls;
  };
  const Case cases[] = {{{"ddp.data_parallel_sharding_strategy=optim_grads_params",
                          "comm_overlap.overlap_grad_reduce=true", "comm_overlap.overlap_param_gather=true"},
                         {"dp_cp reduce_scatter", "dp_cp all_gather"}},
                        {tp2 + Arguments{"comm_overlap.tp_comm_overlap=true"}, {"tp all_reduce"}},
                        {pp2 + Arguments{"dist.virtual_pipeline_model_parallel_size=2"}, {"pp exchange"}}};
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    const fs::path said = folder_ / fmt::format("bench{}", i);
    fs::create_directories(said);
    RankProcesses job({.ranks = 2,
                       .command = Arguments{paths::program, "bench", "step", config, "--steps", "2", "--warmup", "1",
                                            "--profile", "--json"} +
                                  large + cases[i].layout,
                       .environment = {},
                       .folder = said.string()});
    ASSERT_TRUE(job.wait(120s)) << job.all_output();
    ASSERT_EQ(job.status(0), 0) << job.all_output();
    const std::string output = job.output(0);
    const std::size_t begin = output.find("{\"");
    ASSERT_NE(begin, std::string::npos) << output;
    const auto json = nlohmann::json::parse(output.substr(begin, output.find('\n', begin) - begin));
    fmt::print("{}\n", json["profile"]["table"].get<std::string>());
    for (const std::string& call : cases[i].calls) {
      ASSERT_TRUE(json["profile"]["beside"].contains(call)) << json["profile"]["table"];
      EXPECT_GT(json["profile"]["beside"][call]["while_working_ms"].get<double>(), 0) << call;
    }
  }
}

// One rank alone has a fault while the others are in calls that wait for it: it is reported at once, and no rank is
// stuck freeing memory.
TEST_F(NcclRuns, AFaultOfOneRankEndsTheJob) {
  const Arguments more = tp2 + pp2 +
                         Arguments{"train.train_iters=1000000", "train.eval_iters=0",
                                   fmt::format("checkpoint.save_interval={}", gpus_are_emulated ? 40 : 200),
                                   "checkpoint.save=" + (folder_ / "saved").string()};
  RankProcesses job({.ranks = 4,  // a file that is too large is an error, not a signal
                     .command = Arguments{"/bin/sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\"", paths::program} +
                                train("endless", more),
                     .environment = {},
                     .folder = folder_.path().string()});
  wait_for_first_loss(job);
  job.limit_files(1, 16 << 10);
  for (int i = 0; i < 1200 && job.output(1).empty(); ++i) std::this_thread::sleep_for(50ms);  // until it has reported
  EXPECT_TRUE(job.wait(30s)) << job.all_output();
  EXPECT_NE(job.output(1).find("File too large"), std::string::npos) << job.all_output();
  EXPECT_EQ(job.status(1), 2) << job.all_output();
  for (int rank : {0, 2, 3}) {
    EXPECT_EQ(job.status(rank), 1) << job.all_output();
    EXPECT_EQ(job.output(rank).find("its process is ended"), std::string::npos) << job.all_output();
  }
}

TEST_F(NcclRuns, AKilledRankEndsTheJob) {
  const auto job = train_and_signal(2, SIGKILL);
  EXPECT_TRUE(job->wait(15s)) << job->all_output();
  EXPECT_NE(job->output(0).find("rank 2 is gone"), std::string::npos) << job->all_output();
  for (int rank : {0, 1, 3}) EXPECT_EQ(job->status(rank), 1) << job->all_output();
}

TEST_F(NcclRuns, AStoppedRankEndsTheJob) {
  const auto job = train_and_signal(1, SIGSTOP);
  EXPECT_TRUE(job->wait(15s, {1})) << job->all_output();
  EXPECT_NE(job->output(0).find("rank 1 has not answered for 8 s"), std::string::npos) << job->all_output();
  for (int rank : {0, 2, 3}) EXPECT_EQ(job->status(rank), 1) << job->all_output();
}

TEST_F(NcclRuns, AStoppedRankZeroEndsTheJob) {
  const auto job = train_and_signal(0, SIGSTOP);
  EXPECT_TRUE(job->wait(15s, {0})) << job->all_output();
  for (int rank : {1, 2, 3}) {
    EXPECT_EQ(job->status(rank), 1) << job->all_output();
    EXPECT_NE(job->output(rank).find("rank 0 has not answered for 10 s"), std::string::npos) << job->all_output();
  }
}

// A shorter heartbeat timeout ends the job sooner.
TEST_F(NcclRuns, AStoppedRankEndsTheJobWithinTheTimeout) {
  const auto job = train_and_signal(1, SIGSTOP, {"dist.timeout_seconds=2"});
  EXPECT_TRUE(job->wait(8s, {1})) << job->all_output();
  EXPECT_NE(job->output(0).find("rank 1 has not answered for 2 s"), std::string::npos) << job->all_output();
}

TEST_F(NcclRuns, AKilledRankZeroEndsTheJob) {
  const auto job = train_and_signal(0, SIGKILL);
  EXPECT_TRUE(job->wait(15s)) << job->all_output();
  for (int rank : {1, 2, 3}) {
    EXPECT_EQ(job->status(rank), 1) << job->all_output();
    EXPECT_NE(job->output(rank).find("rank 0 is gone"), std::string::npos) << job->all_output();
  }
}

TEST_F(NcclRuns, TwoRanksOnOneGpuAreRefused) {
  const auto job = start(2, "shared", {}, {"NCCL_HOSTID=one"});
  EXPECT_TRUE(job->wait(60s)) << job->all_output();
  EXPECT_EQ(job->status(0), 2) << job->all_output();
  EXPECT_NE(job->output(0).find("two ranks on one GPU: ranks 0 and 1"), std::string::npos) << job->all_output();
  EXPECT_EQ(job->output(1).find("two ranks"), std::string::npos) << "told twice:\n" << job->all_output();
}

TEST_F(NcclRuns, OnTheCpuItSaysWhatToDo) {
  const auto job = start(2, "cpu", {"dist.device=cpu"});
  EXPECT_TRUE(job->wait(60s)) << job->all_output();
  EXPECT_EQ(job->status(0), 2) << job->all_output();
  EXPECT_NE(job->output(0).find("mpirun -n N"), std::string::npos) << job->all_output();
}

// Under mpirun the ranks find each other by MPI, and talk by NCCL.
TEST_F(NcclRuns, UnderMpirun) {
  if (*paths::mpirun == 0) GTEST_SKIP() << "no mpirun";
  train_alone();
  std::string words;
  for (const std::string& word : train("mpi", tp2)) words += word + " ";
  const Outcome outcome =
      run_shell(fmt::format("NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 timeout -k 1 100 {} -n 2 sh -c "
                            "'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec \"{}\" {}'",
                            paths::mpirun, paths::program, words));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  expect_like_alone("mpi");
}

// One of two ranks stops itself after some steps; the other cannot go on, and names the rank that it waited for.
TEST_F(NcclRuns, AStoppedRankUnderMpirunIsNamed) {
  if (*paths::mpirun == 0) GTEST_SKIP() << "no mpirun";
  std::string words;
  for (const std::string& word : train("mpi", tp2 + Arguments{"train.train_iters=1000000", "train.eval_iters=0"}))
    words += word + " ";
  const std::string metrics = (folder_ / "mpi/metrics.jsonl").string();
  const fs::path stopped = folder_ / "stopped";
  const Outcome outcome =
      run_shell(fmt::format("NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 timeout -k 1 100 {} -n 2 sh -c "
                            "'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then me=$$; "
                            "(until grep -q loss \"{}\" 2>/dev/null; do sleep 0.1; done; "
                            "touch \"{}\"; kill -STOP $me) & fi; "
                            "NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec \"{}\" {}'",
                            paths::mpirun, metrics, stopped.string(), paths::program, words));
  const auto ended = fs::file_time_type::clock::now();
  EXPECT_NE(outcome.status, 0) << outcome.output;
  ASSERT_TRUE(fs::exists(stopped)) << outcome.output;
  EXPECT_LT(ended - fs::last_write_time(stopped), 20s) << "15 s for the ranks, the rest for mpirun:\n"
                                                       << outcome.output;
  EXPECT_NE(outcome.output.find("rank 1 has not answered for 8 s"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace tera::test
