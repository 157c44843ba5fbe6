#include "tests/support/rank_tests.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdio>

namespace tera::test {
namespace {

Seat*& seat_slot() {
  static Seat* seat = nullptr;
  return seat;
}

struct FailuresOnly : testing::EmptyTestEventListener {
  explicit FailuresOnly(int own_rank) : rank(own_rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed())
      fmt::print(stderr, "rank {}: {}:{}: {}\n", rank, result.file_name() ? result.file_name() : "",
                 result.line_number(), result.message());
  }
  int rank;
};

void be_quiet(int rank) {
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailuresOnly(rank));
}

}  // namespace

int run_tests_as(Seat& seat) {
  if (seat.rank() != 0) be_quiet(seat.rank());
  seat_slot() = &seat;
  return RUN_ALL_TESTS();
}

Seat& seat_of_this_process() { return *seat_slot(); }

}  // namespace tera::test
