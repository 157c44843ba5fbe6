#include "tests/parallel/mpi_main.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/comm/mpi/make_mpi.h"
#include "tests/support/rank_tests.h"

namespace tera::test {

RankHandle& mpi_rank_handle() { return rank_handle_of_this_process(); }

}  // namespace tera::test

int main(int argc, char** argv) {
  using namespace tera;
  testing::InitGoogleTest(&argc, argv);
  int failed = 0;
  cpu::CpuOps combiner(1, cpu::best_isa());
  const int status = mpi::run_process(
      {.timeout = std::chrono::seconds(60)}, combiner,
      [&](RankHandle& rank_handle) { failed = test::run_tests_as(rank_handle); },
      [](std::string_view fault) { fmt::print(stderr, "{}\n", fault); },
      [](control::Control&, Ops&) -> std::unique_ptr<Comm> { fail("there is no GPU here"); });
  return status != 0 ? status : failed;
}
