#pragma once
// The emulation reads its options once in a process. Other options are tested in processes of their own: the test
// program starts again with these variables and reaches the same call.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <string>

namespace tera::test {

struct Variable {
  const char* name;
  std::string value;
};

[[noreturn]] inline void run_and_exit(const std::function<void()>& body) {
  body();
  const testing::TestResult& result = *testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result.total_part_count(); ++i) {  // they are printed nowhere else there
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (part.failed()) std::fprintf(stderr, "%s:%d: %s\n", part.file_name(), part.line_number(), part.message());
  }
  std::exit(testing::Test::HasFailure() ? 1 : 0);
}

// No CUDA function may be called earlier in the calling test.
inline void in_process(std::initializer_list<Variable> environment, const std::function<void()>& body) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const Variable& variable : environment) ::setenv(variable.name, variable.value.c_str(), 1);
  EXPECT_EXIT(run_and_exit(body), testing::ExitedWithCode(0), "");
  for (const Variable& variable : environment) ::unsetenv(variable.name);
}

// Runs a body that must hold in every order of streams.
inline void in_each_order(const std::function<void()>& body) {
  for (const char* order : {"lazy", "eager", "random:1", "random:2", "random:3"}) {
    SCOPED_TRACE(order);
    in_process({{"CUDA_ON_CPU_STREAMS", order}}, body);
  }
}

}  // namespace tera::test
