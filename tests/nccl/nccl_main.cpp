#include "tests/nccl/nccl_main.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/comm/nccl/make_nccl.h"
#include "tera/comm/nccl/nccl_info.h"
#include "tera/train/launch.h"
#include "tests/support/rank_tests.h"

namespace tera::test {
namespace {

int run_tests(std::string_view wanted_ranks) {
  const Launch launch = detect_launch({});
  if (!wanted_ranks.empty() && fmt::format("--ranks={}", launch.world) != wanted_ranks) {
    fmt::print(stderr, "{}, but this is one of {}\n", wanted_ranks, launch.world);
    return 1;
  }
  int failed = 0;
  const nccl::ProcessOptions options{.address = launch.address,
                                     .rank = launch.rank,
                                     .size = launch.world,
                                     .timeout = std::chrono::seconds(60),
                                     .machine = launch.machine};
  const int status = nccl::run_process(
      options, [&](RankHandle& rank_handle) { failed = run_tests_as(rank_handle); },
      [](std::string_view fault) { fmt::print(stderr, "{}\n", fault); });
  return status != 0 ? status : failed;
}

}  // namespace

RankHandle& nccl_rank_handle() { return rank_handle_of_this_process(); }

}  // namespace tera::test

int main(int argc, char** argv) {
  constexpr int skipped = 77;
  testing::InitGoogleTest(&argc, argv);
  if (!tera::cuda::usable() || tera::nccl::query_nccl().version.empty()) {
    std::fputs("skipped: there is no GPU that this program can use, or no NCCL\n", stderr);
    return skipped;
  }
  return tera::test::run_tests(argc > 1 ? argv[1] : "");
}
