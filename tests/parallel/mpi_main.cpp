#include "tests/parallel/mpi_main.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/mpi/make_mpi.h"

namespace tera::test {
namespace {

Seat*& seat_of_this_process() {
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

Seat& mpi_seat() { return *seat_of_this_process(); }

}  // namespace tera::test

int main(int argc, char** argv) {
  using namespace tera;
  testing::InitGoogleTest(&argc, argv);
  int failed = 0;
  cpu::CpuOps combiner(1, cpu::best_isa());
  const int status = mpi::run_process(
      {.timeout = std::chrono::seconds(60)}, combiner,
      [&](Seat& seat) {
        if (seat.rank() != 0) test::be_quiet(seat.rank());
        test::seat_of_this_process() = &seat;
        failed = RUN_ALL_TESTS();
      },
      [](std::string_view fault) { fmt::print(stderr, "{}\n", fault); });
  return status != 0 ? status : failed;
}
