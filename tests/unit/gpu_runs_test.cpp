// scripts/gpu-runs keeps the list of what a GPU has run: it fails where the list is not true.

#include <gtest/gtest.h>

#include "tests/end_to_end/program.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

class GpuRuns : public testing::Test {
 protected:
  GpuRuns() {
    folder_.write("tera/backend/cuda/norm.cu", "a kernel\n");
    folder_.write("tera/comm/nccl/ids.cpp", "host code\n");
    folder_.write("docs/gpu.md",
                  "# GPU\n"
                  "<!-- what a GPU has run: begin -->\n"
                  "| part | sources | without a GPU | last run on a GPU | since then |\n"
                  "|---|---|---|---|---|\n"
                  "| all norms | `backend/cuda/norm.*` | emulated | never | not seen |\n"
                  "| host code | `comm/nccl/ids.cpp` | tested | - | - |\n"
                  "<!-- what a GPU has run: end -->\n"
                  "The end.\n");
  }
  Outcome run(const std::string& arguments = "") const {
    return run_shell("TERA_ROOT='" + folder_.path().string() + "' '" + source_path("scripts/gpu-runs") + "' " +
                     arguments);
  }
  std::string table() const { return slurp(folder_ / "docs/gpu.md"); }

  TempFolder folder_;
};

TEST_F(GpuRuns, NotesARunAndSeesWhatChangedSince) {
  EXPECT_EQ(run().status, 0);
  EXPECT_EQ(run("--seen abc1234 'all norms'").status, 0);
  EXPECT_NE(table().find("| all norms | `backend/cuda/norm.*` | emulated | abc1234 "), std::string::npos) << table();
  EXPECT_NE(table().find(" | unchanged |\n"), std::string::npos) << table();
  EXPECT_NE(table().find("| host code | `comm/nccl/ids.cpp` | tested | - | - |\n"), std::string::npos) << table();
  EXPECT_TRUE(table().ends_with("\nThe end.\n")) << table();
  EXPECT_EQ(run().status, 0);

  folder_.write("tera/backend/cuda/norm.cu", "another kernel\n");
  const Outcome stale = run();
  EXPECT_EQ(stale.status, 1);
  EXPECT_NE(stale.output.find("says 'unchanged' of 'all norms', which is 'changed'"), std::string::npos)
      << stale.output;
  EXPECT_EQ(run("--update").status, 0);
  EXPECT_NE(table().find(" | changed |\n"), std::string::npos) << table();
  EXPECT_EQ(run().status, 0);
}

TEST_F(GpuRuns, NamesASourceThatNoPartLists) {
  folder_.write("tera/backend/cuda/rope.cu", "a kernel\n");
  const Outcome outcome = run();
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.output.find("tera/backend/cuda/rope.cu"), std::string::npos) << outcome.output;
}

TEST_F(GpuRuns, NamesAPatternWithoutFiles) {
  std::filesystem::remove(folder_ / "tera/comm/nccl/ids.cpp");
  const Outcome outcome = run();
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.output.find("'comm/nccl/ids.cpp', which matches no file"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace tera::test
