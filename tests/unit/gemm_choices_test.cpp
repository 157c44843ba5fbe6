#include "tera/backend/cuda/libraries/gemm_choices.h"

#include <gtest/gtest.h>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::cuda {
namespace {

const GemmChoices::Environment here{.gpu = "GPU 1", .library = 130001, .options = "a"};

TEST(GemmChoices, AreReadBackInTheSamePlace) {
  const test::TempFolder folder;
  const auto file = folder.path() / "run" / "kernels.json";
  GemmChoices choices(file, here);
  EXPECT_FALSE(choices.find("a"));
  choices.set("a", 3);
  choices.set("b", 0);
  choices.save();
  const GemmChoices again(file, here);
  EXPECT_EQ(again.find("a"), 3u);
  EXPECT_EQ(again.find("b"), 0u);
  EXPECT_FALSE(again.find("c"));
}

TEST(GemmChoices, OfAnotherGpuOrLibraryAreLeftAside) {
  const test::TempFolder folder;
  const auto file = folder.path() / "kernels.json";
  GemmChoices choices(file, here);
  choices.set("a", 3);
  choices.save();
  EXPECT_FALSE(GemmChoices(file, here).from_elsewhere());
  for (const GemmChoices::Environment& other :
       {GemmChoices::Environment{.gpu = "GPU 2", .library = 130001, .options = "a"},
        {.gpu = "GPU 1", .library = 130002, .options = "a"},
        {.gpu = "GPU 1", .library = 130001, .options = "b"}}) {
    EXPECT_FALSE(GemmChoices(file, other).find("a"));
    EXPECT_TRUE(GemmChoices(file, other).from_elsewhere());
  }
}

TEST(GemmChoices, WithoutAFileKeepNothing) {
  GemmChoices choices({}, here);
  choices.set("a", 3);
  choices.save();
  EXPECT_EQ(choices.find("a"), 3u);
}

TEST(GemmChoices, RefuseFilesThatAreNone) {
  const test::TempFolder folder;
  const auto file = folder.path() / "kernels.json";
  for (const char* text : {"", "{", "[]", "{}", R"({"gpu": "GPU 1", "cublaslt": 130001, "gemm": {}})",
                           R"({"gpu": 1, "cublaslt": 2, "options": "a", "gemm": {}})",
                           R"({"gpu": "GPU 1", "cublaslt": -2, "options": "a", "gemm": {}})",
                           R"({"gpu": "GPU 1", "cublaslt": 130001, "options": "a", "gemm": [1]})",
                           R"({"gpu": "GPU 1", "cublaslt": 130001, "options": "a", "gemm": {"a": -1}})",
                           R"({"gpu": "GPU 1", "cublaslt": 130001, "options": "a", "gemm": {"a": 1.5}})"}) {
    write_file_atomically(file, text);
    const std::string message = test::message_of<UserError>([&] { GemmChoices(file, here); });
    EXPECT_NE(message.find("kernels.json"), std::string::npos) << text << ": " << message;
  }
}

}  // namespace
}  // namespace tera::cuda
