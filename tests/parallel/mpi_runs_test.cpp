// The real program under mpirun: the same bits as with its ranks as threads, and an end whatever happens to one of
// them.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/end_to_end/program.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;

const std::string config = source_path("configs/tests/tiny.yaml");
const std::string tp2_pp2 = "dist.tensor_model_parallel_size=2 dist.pipeline_model_parallel_size=2";

class MpiRuns : public testing::Test {
 protected:
  static Outcome as_processes(int ranks, const std::string& arguments) {
    return run_shell(fmt::format("{} -n {} \"{}\" {}", paths::mpirun, ranks, paths::program, arguments));
  }
  static std::size_t count(const std::string& text, const std::string& words) {
    std::size_t found = 0;
    for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++found;
    return found;
  }
  std::string train(const std::string& name, const std::string& more = "") const {
    return fmt::format("train {} run.dir={}/run checkpoint.save={}/saved model.vocab_size=512 {} {}", config,
                       (folder_ / name).string(), (folder_ / name).string(), tp2_pp2, more);
  }
  std::string generate(const std::string& name, const std::string& more = "") const {
    return fmt::format("generate --model {}/saved --prompt Once --max-new-tokens 20 {}", (folder_ / name).string(),
                       more);
  }

  // Trains on four ranks until all do, sends one of them a signal, and returns the job's output.
  Outcome train_and_signal(const std::string& signal, int rank) const {
    const std::string pids = (folder_ / "pid").string(), run = (folder_ / "run").string();
    return run_shell(fmt::format(
        "{} -n 4 sh -c 'echo $$ > {}.$OMPI_COMM_WORLD_RANK; exec \"{}\" train {} run.dir={} {} "
        "dist.timeout_seconds=2 train.train_iters=1000000 train.eval_iters=0' > {}.out 2>&1 & "
        "for i in $(seq 400); do [ -s {}/metrics.jsonl ] && break; sleep 0.05; done; kill -{} $(cat {}.{}); wait $!; "
        "tail -c 5000 {}.out",
        paths::mpirun, pids, paths::program, config, run, tp2_pp2, pids, run, signal, pids, rank, pids));
  }
  // Whether all four processes are gone, or will be in a moment; what is only waited for has no command line any more.
  bool all_gone() const {
    for (int i = 0; i < 30; ++i) {
      int there = 0;
      for (int rank = 0; rank < 4; ++rank) {
        std::string pid = slurp(folder_ / fmt::format("pid.{}", rank));
        while (!pid.empty() && pid.back() == '\n') pid.pop_back();
        if (pid.empty() || !slurp(fmt::format("/proc/{}/cmdline", pid)).empty()) ++there;
      }
      if (there == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }

  TempFolder folder_;
};

TEST_F(MpiRuns, ProcessesTrainAsThreadsDo) {
  const Outcome threads = run_program(train("threads", "--ranks 4")), processes = as_processes(4, train("processes"));
  ASSERT_EQ(threads.status, 0) << threads.output;
  ASSERT_EQ(processes.status, 0) << processes.output;
  EXPECT_EQ(column(folder_ / "threads/run", "loss").size(), 10u);
  for (const char* key : {"loss", "eval_loss", "grad_norm"})
    EXPECT_EQ(column(folder_ / "threads/run", key), column(folder_ / "processes/run", key)) << key;
  const auto weights = [&](const std::string& name) {
    return slurp(folder_ / (name + "/saved/step_00000010/rank_00003.safetensors"));
  };
  EXPECT_GT(weights("threads").size(), 1000u);
  EXPECT_TRUE(weights("threads") == weights("processes"));
  const Outcome text = as_processes(4, generate("threads", tp2_pp2));
  EXPECT_EQ(text.status, 0) << text.output;
  EXPECT_NE(text.output.find("Once"), std::string::npos) << text.output;
}

// The run ends in the middle, once by itself and once by a kill, and is resumed; the ranks may be threads the next
// time.
TEST_F(MpiRuns, ProcessesGoOnAsIfNeverEnded) {
  const std::string often = "train.eval_iters=0 scheduler.lr_decay_iters=60 checkpoint.async_save=true ";
  const Outcome uninterrupted = run_program(train("whole", often + "train.train_iters=60 --ranks 4"));
  ASSERT_EQ(uninterrupted.status, 0) << uninterrupted.output;
  const Outcome first = as_processes(4, train("parts", often + "train.train_iters=20"));
  ASSERT_EQ(first.status, 0) << first.output;
  const std::string pid = (folder_ / "pid").string(), metrics = (folder_ / "parts/run/metrics.jsonl").string();
  const Outcome killed = run_shell(fmt::format(
      "{} -n 4 sh -c 'echo $$ > {}.$OMPI_COMM_WORLD_RANK; exec \"{}\" {}' > {}.out 2>&1 & "
      "for i in $(seq 400); do [ $(wc -l < {}) -gt 30 ] && break; sleep 0.01; done; kill -KILL $(cat {}.2); wait $!; "
      "cat {}.out",
      paths::mpirun, pid, paths::program,
      train("parts", often + "dist.timeout_seconds=2 train.train_iters=60 checkpoint.save_interval=1"), pid, metrics,
      pid, pid));
  ASSERT_NE(killed.output.find("going on after step 20 from "), std::string::npos) << killed.output;
  EXPECT_TRUE(all_gone()) << killed.output;
  const Outcome last = as_processes(4, train("parts", often + "train.train_iters=60"));
  ASSERT_EQ(last.status, 0) << last.output;
  for (const char* key : {"step", "loss", "grad_norm", "lr"})
    EXPECT_EQ(column(folder_ / "parts/run", key), column(folder_ / "whole/run", key)) << key;
  EXPECT_EQ(slurp(folder_ / "parts/saved/step_00000060/rank_00003.safetensors"),
            slurp(folder_ / "whole/saved/step_00000060/rank_00003.safetensors"));
}

// Each file is verified by one rank, whose fault ends all.
TEST_F(MpiRuns, ADamagedCheckpointIsReportedOnce) {
  ASSERT_EQ(run_program(train("a", "--ranks 4")).status, 0);
  const fs::path file = folder_ / "a/saved/step_00000010/rank_00002.safetensors";
  std::string content = slurp(file);
  content.back() = static_cast<char>(content.back() ^ 1);
  folder_.write("a/saved/step_00000010/rank_00002.safetensors", content);
  const std::string words = "rank_00002.safetensors: its checksum is ", more = "train.train_iters=20 ";
  for (const Outcome& outcome : {run_program(train("a", more + "--ranks 4")), as_processes(4, train("a", more))}) {
    EXPECT_NE(outcome.status, 0) << outcome.output;
    EXPECT_EQ(count(outcome.output, words), 1u) << outcome.output;
  }
}

TEST_F(MpiRuns, AMistakeThatAllFindIsReportedOnce) {
  const Outcome config_mistake = as_processes(3, train("a"));
  EXPECT_EQ(config_mistake.status, 2) << config_mistake.output;
  EXPECT_EQ(count(config_mistake.output, "must divide the number of ranks"), 1u) << config_mistake.output;
  const Outcome no_model = as_processes(2, "generate --model /nowhere");
  EXPECT_EQ(no_model.status, 2) << no_model.output;
  EXPECT_EQ(count(no_model.output, "/nowhere: there is no such folder"), 1u) << no_model.output;
  const Outcome both = as_processes(2, train("a", "--ranks 2"));
  EXPECT_EQ(both.status, 2) << both.output;
}

TEST_F(MpiRuns, AnotherConfigIsNamed) {
  const Outcome outcome = run_shell(fmt::format("{} -n 4 sh -c '\"{}\" {} train.seed=$((OMPI_COMM_WORLD_RANK == 2))'",
                                                paths::mpirun, paths::program, train("a")));
  EXPECT_NE(outcome.status, 0) << outcome.output;
  EXPECT_EQ(count(outcome.output, "the configuration is not the same on all ranks: that of rank 2 differs"), 1u)
      << outcome.output;
  EXPECT_FALSE(fs::exists(folder_ / "a/run"));
}

TEST_F(MpiRuns, OtherDataIsNamed) {
  for (const char* rank : {"a", "b"}) {
    fs::create_directory(folder_ / rank);
    std::ofstream text(folder_ / rank / "text.txt");
    for (int line = 0; line < 400; ++line) text << "Line " << line << " of " << rank << ".\n";
  }
  const std::string run = fmt::format(
      "\"{}\" train {} dataset.kind=text dataset.data_path=text.txt dataset.split=1,0,0 run.dir=run "
      "model.vocab_size=512 "
      "dist.tensor_model_parallel_size=2",
      paths::program, config);
  const Outcome outcome = run_shell(
      fmt::format("cd {} && {} -n 1 --wdir a {} : -n 1 --wdir b {}", folder_.path().string(), paths::mpirun, run, run));
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_EQ(count(outcome.output, "the training data is not the same on all ranks: that of rank 1 differs"), 1u)
      << outcome.output;
}

TEST_F(MpiRuns, AStoppedRankIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = train_and_signal("STOP", 2);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_GT(count(outcome.output, "rank 2"), 0u) << outcome.output;
  EXPECT_TRUE(all_gone()) << outcome.output;
}

TEST_F(MpiRuns, AKilledRankEndsTheJob) {
  const Outcome outcome = train_and_signal("KILL", 1);
  EXPECT_GT(count(outcome.output, "rank 1"), 0u) << outcome.output;
  EXPECT_TRUE(all_gone()) << outcome.output;
}

}  // namespace
}  // namespace tera::test
