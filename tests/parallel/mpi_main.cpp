#include "tests/parallel/mpi_main.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/mpi/make_mpi.h"
#include "tests/support/rank_tests.h"

namespace tera::test {

Seat& mpi_seat() { return seat_of_this_process(); }

}  // namespace tera::test

int main(int argc, char** argv) {
  using namespace tera;
  testing::InitGoogleTest(&argc, argv);
  int failed = 0;
  cpu::CpuOps combiner(1, cpu::best_isa());
  const int status = mpi::run_process(
      {.timeout = std::chrono::seconds(60)}, combiner, [&](Seat& seat) { failed = test::run_tests_as(seat); },
      [](std::string_view fault) { fmt::print(stderr, "{}\n", fault); });
  return status != 0 ? status : failed;
}
