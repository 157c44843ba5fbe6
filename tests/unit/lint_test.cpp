// The lint on trees written for it: every rule finds its violation, names the line, and leaves right code alone.

#include "tools/lint/lint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tera::lint {
namespace {

namespace fs = std::filesystem;

class LintTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "tera_lint_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    fs::create_directories(root_ / "tera");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
    if (!path.starts_with("tera/")) return;
    for (fs::path folder = fs::path(path).parent_path(); folder != "tera"; folder = folder.parent_path())
      std::ofstream(root_ / folder / "README.md") << "what it is for\n";
  }

  // "path:line message" of everything found.
  std::vector<std::string> findings() {
    std::vector<std::string> all;
    for (const Finding& finding : check_repository(root_).findings)
      all.push_back(finding.path + ":" + std::to_string(finding.line) + " " + finding.message);
    return all;
  }

  void expect_one(const std::string& location, const std::string& words) {
    const auto all = findings();
    ASSERT_EQ(all.size(), 1u) << testing::PrintToString(all);
    EXPECT_TRUE(all[0].starts_with(location + " ")) << all[0];
    EXPECT_NE(all[0].find(words), std::string::npos) << all[0];
  }

  void expect_clean() { EXPECT_EQ(findings(), std::vector<std::string>{}); }

  fs::path root_;
};

TEST_F(LintTest, FamiliesAreToldApartInTheirOwnFilesOnly) {
  write("tera/models/families/gpt.cpp", "bool plain() { return family->name == \"gpt\"; }\n");
  write("tera/nn/norm.cpp", "float eps() { return family->eps; }\n");
  expect_clean();
  write("tera/nn/norm.cpp", "int x;\nfloat eps() { return model.family->name == \"gpt\" ? 1 : 2; }\n");
  expect_one("tera/nn/norm.cpp:2", "ModelFamily");
  for (const char* test :
       {"family.name == \"gpt\"", "\"gpt\" == family->name", "family->name.starts_with(\"deepseek\")",
        "model.arch->hf_class != \"X\"", "family == &family_named(\"gpt\")", "model.family == &llama::family"}) {
    write("tera/nn/norm.cpp", std::string("int x;\nbool is_it() { return ") + test + "; }\n");
    expect_one("tera/nn/norm.cpp:2", "ModelFamily");
  }
}

TEST_F(LintTest, FolderIncludesOnlyFoldersBeforeIt) {
  write("tera/nn/block.h", "#pragma once\n#include \"tera/ops/ops.h\"\n#include \"tera/nn/run.h\"\n");
  write("tera/train/trainer.cpp", "#include \"tera/checkpoint/writer.h\"\n#include \"tera/train/sinks/metrics.h\"\n");
  expect_clean();
  write("tera/ops/gemm.h", "#pragma once\n\n#include <cmath>\n#include \"tera/nn/block.h\"\n");
  expect_one("tera/ops/gemm.h:4", "nn comes after ops");
}

TEST_F(LintTest, AngleBracketsDoNotHideAnInclude) {
  write("tera/base/log.cpp", "#  include <tera/tensor/tensor.h>\n");
  expect_one("tera/base/log.cpp:1", "tensor comes after base");
}

TEST_F(LintTest, OwnHeadersAreNamedFromTheRoot) {
  write("tera/base/log.cpp", "#include \"log.h\"\n");
  expect_one("tera/base/log.cpp:1", "named from the root");
}

TEST_F(LintTest, NewFolderNeedsAPlace) {
  write("tera/misc/a.cpp", "#include \"tera/base/error.h\"\n");
  expect_one("tera/misc/a.cpp:1", "tera/misc has no place yet");
}

TEST_F(LintTest, BackendSeesOnlyWhatItImplements) {
  write("tera/backend/cuda/a.cpp",
        "#include \"tera/ops/ops.h\"\n#include \"tera/comm/comm.h\"\n"
        "#include \"tera/backend/cuda/kernels/a.cuh\"\n#include <cublasLt.h>\n");
  write("tera/comm/nccl/a.cpp",
        "#include \"tera/backend/cuda/cuda_ops.h\"\n#include \"tera/comm/control/control.h\"\n");
  write("tera/comm/mpi/a.cpp", "#include \"tera/comm/control/control.h\"\n");
  expect_clean();
  write("tera/comm/mpi/b.cpp", "#include \"tera/backend/cuda/cuda_ops.h\"\n");
  expect_one("tera/comm/mpi/b.cpp:1", "comm/mpi may include only base, tensor, ops, comm and itself");
  fs::remove(root_ / "tera/comm/mpi/b.cpp");
  for (const std::string folder : {"config", "nn", "train", "backend/cpu"}) {
    write("tera/backend/plan/plan_ops.cpp", "#include \"tera/" + folder + "/a.h\"\n");
    expect_one("tera/backend/plan/plan_ops.cpp:1", "may include only base, tensor, ops, comm and itself");
  }
}

TEST_F(LintTest, OnlySetupSeesBackends) {
  write("tera/train/setup.cpp", "#include \"tera/backend/cpu/cpu_ops.h\"\n");
  write("tera/train/training_step.cpp", "#include \"tera/backend/plan/plan_ops.h\"\n");
  write("apps/doctor_command.cpp", "#include \"tera/backend/cpu/cpu_isa.h\"\n");
  write("tests/ops/gemm_test.cpp", "#include \"tera/backend/cpu/cpu_ops.h\"\n");
  expect_clean();
  write("tera/train/trainer.cpp", "\n#include \"tera/backend/cpu/cpu_ops.h\"\n");
  expect_one("tera/train/trainer.cpp:2", "only tera/train/setup.cpp sees backends");
  fs::remove(root_ / "tera/train/trainer.cpp");
  write("tera/nn/block.cpp", "#include \"tera/backend/plan/plan_ops.h\"\n");
  expect_one("tera/nn/block.cpp:1", "only tera/train/setup.cpp sees backends");
}

TEST_F(LintTest, KernelsIncludeNoCodeFromElsewhere) {
  write(
      "tera/backend/cpu/kernels/gemm.cpp",
      "#include \"tera/backend/cpu/kernels/vec.h\"\n#include \"tera/base/kinds.h\"\n#include \"tera/tensor/dtype.h\"\n"
      "#include <cmath>\n#include <cstdint>\n#include <cstddef>\n#include <cstring>\n");
  expect_clean();
  for (const std::string header :
       {"<algorithm>", "<vector>", "\"tera/tensor/tensor.h\"", "\"tera/backend/cpu/cpu_ops.h\""}) {
    write("tera/backend/cpu/kernels/norm.cpp", "#include " + header + "\n");
    expect_one("tera/backend/cpu/kernels/norm.cpp:1", "kernels may include only");
  }
}

TEST_F(LintTest, CommentsStandOnTheirOwn) {
  write("tera/base/a.cpp",
        "// Sizes in bytes,\n// and of nothing else.\nint rows;  // of a tile\nint columns;  // width of a tile\n"
        "const char* text = \"// of\";\n");
  expect_one("tera/base/a.cpp:3", "stands on its own");
  write("tera/base/a.cpp", "int a;\n// Likewise for b.\nint b;\n");
  expect_one("tera/base/a.cpp:2", "stands on its own");
}

TEST_F(LintTest, IdentifiersAreWordsOfTheField) {
  write("tera/base/a.cpp", "int max_rows;  // the most_rows of old\nint most_likely;\nint almost_done;\n");
  expect_clean();
  write("tera/base/a.cpp", "int most_rows;\n");
  expect_one("tera/base/a.cpp:1", "most_rows: write max_");
  write("tera/base/a.cpp", "struct Carousel {};\n");
  expect_one("tera/base/a.cpp:1", "Carousel: write RingBuffer");
}

TEST_F(LintTest, HeaderStartsWithPragmaOnce) {
  write("tera/base/a.h", "// Why this exists.\n\n#pragma once\n");
  write("tera/base/a.cpp", "int a();\n");
  expect_clean();
  write("tera/base/b.h", "#ifndef B\n#pragma once\n#endif\n");
  expect_one("tera/base/b.h:1", "#pragma once");
  fs::remove(root_ / "tera/base/b.h");
  write("apps/empty.h", "");
  expect_one("apps/empty.h:1", "#pragma once");
}

TEST_F(LintTest, EnvironmentIsReadInTwoPlaces) {
  write("apps/tera.cpp", "const char* home = std::getenv(\"X\");\n");
  write("tera/train/launch.cpp", "const char* rank = getenv(\"RANK\");\n");
  write("tera/base/a.cpp", "// getenv is not for us\nint my_getenv_count();\nconst char* text = \"getenv\";\n");
  expect_clean();
  write("tera/base/b.cpp", "#include <cstdlib>\nconst char* home = std::getenv(\"X\");\n");
  expect_one("tera/base/b.cpp:2", "environment");
}

TEST_F(LintTest, LibraryDoesNotPrint) {
  write("apps/tera.cpp", "void f() { std::cout << 1; }\n");
  write("tera/base/a.cpp",
        "/* std::cout\n std::cout */ auto x = R\"(std::cout)\";\nvoid f() { std::snprintf(b, 9, \"\\\"cout\"); }\n");
  expect_clean();
  write("tera/base/b.cpp", "void f() {\n  int thousand = 1'000;\n  std::cout << thousand;\n}\n");
  expect_one("tera/base/b.cpp:3", "not through cout");
}

TEST_F(LintTest, LinesEndAtColumn120) {
  std::string umlauts;
  for (int i = 0; i < 117; ++i) umlauts += "\xc3\xa4";
  write("apps/a.cpp", "// " + umlauts + "\n// " + std::string(117, 'a') + "\n");
  expect_clean();
  write("apps/b.cpp", "\n// " + std::string(118, 'a') + "\n");
  expect_one("apps/b.cpp:2", "121 columns");
}

TEST_F(LintTest, NoHomePaths) {
  write("docs/a.md",
        "See https://example.org/ho"
        "me/page and a/ro"
        "ot/b.\n");
  write("build/log.txt",
        "/home/"
        "someone/x\n");
  expect_clean();
  write("docs/b.md",
        "first\nRun `/home/"
        "someone/tera`.\n");
  expect_one("docs/b.md:2", "home folder");
}

TEST_F(LintTest, FoldersOfTheLibraryHaveAReadme) {
  write("tera/base/a.cpp", "int a();\n");
  write("tera/backend/cpu/kernels/a.cpp", "int a();\n");
  fs::remove(root_ / "tera/backend/cpu/kernels/README.md");
  expect_clean();
  fs::remove(root_ / "tera/base/README.md");
  expect_one("tera/base:0", "README.md");
}

TEST_F(LintTest, FoldersOfTheLibraryStaySmall) {
  for (int i = 0; i < 41; ++i) {
    write("tera/models/families/a" + std::to_string(i) + ".cpp", "int a();\n");
    if (i < 40) write("tera/base/a" + std::to_string(i) + ".cpp", "int a();\n");
  }
  expect_clean();
  write("tera/base/a40.cpp", "int a();\n");
  expect_one("tera/base:0", "41 files");
}

TEST_F(LintTest, ReportsSizesLongestFirst) {
  write("apps/a.cpp", "\n\n");
  write("apps/b.cpp", "\n\n\nint last_line_without_end;");
  const auto sizes = check_repository(root_).sizes;
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(sizes[0].path, "apps/b.cpp");
  EXPECT_EQ(sizes[0].lines, 4u);
  EXPECT_EQ(sizes[1].lines, 2u);
}

TEST_F(LintTest, RefusesWhatIsNotTheRepository) { EXPECT_THROW(check_repository(root_ / "tera"), std::runtime_error); }

}  // namespace
}  // namespace tera::lint
