// bench/multi_gpu on a machine without GPUs: what it would start, and how results become tables.

#include <gtest/gtest.h>

#include <sstream>

#include "tests/end_to_end/program.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

class MultiGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (run_shell("command -v python3").status != 0) GTEST_SKIP() << "no python3";
  }
  static Outcome run(const std::string& arguments) {
    return run_shell("'" + source_path("bench/multi_gpu") + "' " + arguments);
  }
  TempFolder folder_;
};

// Each kind of overlap on two GPUs, each kind of parallelism on 2 and 4, one GPU alone, a rank that is killed.
TEST_F(MultiGpu, ADryRunNamesEveryJob) {
  const Outcome outcome = run("--dry-run --gpus 4 --tera tera");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  std::istringstream lines(outcome.output);
  int overlaps = 0, scalings = 0, deaths = 0;
  for (std::string line; std::getline(lines, line);) {
    overlaps += line.starts_with("overlap, ");
    scalings += line.starts_with("scaling, ");
    deaths += line.starts_with("death, 4 GPUs: tera train ");
    EXPECT_NE(line.find(" GPUs: tera "), std::string::npos) << line;
  }
  EXPECT_EQ(overlaps, 8 * 2 + 3);
  EXPECT_EQ(scalings, 2 + 7 * 2);
  EXPECT_EQ(deaths, 1);
  for (const char* words :
       {"overlap, gradient reduce on, 2 GPUs: ", "comm_overlap.overlap_p2p_comm=false", "dist.cp_comm_type=a2a",
        "scaling, EP, 4 GPUs: ", "train.global_batch_size=64 dist.tensor_model_parallel_size=4"})
    EXPECT_NE(outcome.output.find(words), std::string::npos) << words << " is not in\n" << outcome.output;
}

TEST_F(MultiGpu, TablesOfWhatWasMeasured) {
  const std::string overlap = R"({"part": "overlap", "ranks": 2, "config": "a/llama.yaml", "name": )",
                    scaling = R"({"part": "scaling", "kind": "", "config": "a/llama.yaml", "name": )";
  folder_.write("raw.jsonl",
                overlap + R"("ring", "kind": "off", "step_ms": 300, "tokens_per_s": 1, "beside": 0})" + "\n" + overlap +
                    R"("ring", "kind": "on", "step_ms": 240, "tokens_per_s": 1, "beside": 0.75})" + "\n" + overlap +
                    R"("other", "kind": "off", "failed": true})" + "\n" + scaling +
                    R"("one GPU", "ranks": 1, "step_ms": 1, "tokens_per_s": 1000, "beside": null})" + "\n" + scaling +
                    R"("TP", "ranks": 4, "step_ms": 1, "tokens_per_s": 3600, "beside": null})" + "\n" +
                    R"({"part": "death", "name": "rank 3", "ranks": 4, "seconds": 1.25, "named": true})" + "\n");
  const Outcome outcome = run("--table '" + (folder_ / "raw.jsonl").string() + "'");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  for (const char* row :
       {"| ring | 300.0 | 240.0 | 1.250 | 75 % |\n", "| other | - | - | - | - |\n",
        "| one GPU, llama | 1 | 1000 | 1.000 |\n", "| TP | 4 | 900 | 0.900 |\n", "| rank 3 | 4 | 1.2 | yes |\n"})
    EXPECT_NE(outcome.output.find(row), std::string::npos) << row << " is not in\n" << outcome.output;
}

TEST_F(MultiGpu, OneGpuIsNotEnough) {
  folder_.write("nvidia-smi", "#!/bin/sh\necho 'GPU 0: one (UUID: GPU-1)'\n");
  const std::string path = "chmod +x '" + (folder_ / "nvidia-smi").string() + "'; PATH='" + folder_.path().string() +
                           "':$PATH; unset CUDA_VISIBLE_DEVICES; ";
  const Outcome measuring = run_shell(path + "'" + source_path("bench/multi_gpu") + "'");
  EXPECT_EQ(measuring.status, 2) << measuring.output;
  EXPECT_NE(measuring.output.find("2 GPUs are needed, and there is 1"), std::string::npos) << measuring.output;
  const Outcome outcome = run_shell(path + "TERA_GPU_LOGS='" + (folder_ / "logs").string() + "' '" +
                                    source_path("scripts/gpu") + "' multi");
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_NE(outcome.output.find("'multi' needs two or more GPUs, and this machine has 1"), std::string::npos)
      << outcome.output;
}

}  // namespace
}  // namespace tera::test
