#include "tests/support/rank_tests.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdio>

namespace tera::test {
namespace {

RankHandle*& rank_handle_slot() {
  static RankHandle* rank_handle = nullptr;
  return rank_handle;
}

struct FailuresOnly : testing::EmptyTestEventListener {
  explicit FailuresOnly(int local_rank) : rank(local_rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed())
      fmt::print(stderr, "rank {}: {}:{}: {}\n", rank, result.file_name() ? result.file_name() : "",
                 result.line_number(), result.message());
  }
  int rank;
};

void silence_output(int rank) {
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailuresOnly(rank));
}

}  // namespace

int run_tests_as(RankHandle& rank_handle) {
  if (rank_handle.rank() != 0) silence_output(rank_handle.rank());
  rank_handle_slot() = &rank_handle;
  return RUN_ALL_TESTS();
}

RankHandle& rank_handle_of_this_process() { return *rank_handle_slot(); }

}  // namespace tera::test
