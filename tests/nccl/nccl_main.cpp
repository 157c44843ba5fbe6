#include "tests/nccl/nccl_main.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "tera/backend/cuda/make_cuda.h"
#include "tera/backend/nccl/make_nccl.h"
#include "tera/backend/nccl/nccl_info.h"
#include "tera/train/launch.h"

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

int run_tests() {
  const Launch launch = detect_launch({});
  int failed = 0;
  const nccl::ProcessOptions options{.meeting = launch.meeting,
                                     .rank = launch.rank,
                                     .size = launch.world,
                                     .timeout = std::chrono::seconds(60),
                                     .machine = launch.machine};
  const int status = nccl::run_process(
      options,
      [&](Seat& seat) {
        if (seat.rank() != 0) be_quiet(seat.rank());
        seat_of_this_process() = &seat;
        failed = RUN_ALL_TESTS();
      },
      [](std::string_view fault) { fmt::print(stderr, "{}\n", fault); });
  return status != 0 ? status : failed;
}

}  // namespace

Seat& nccl_seat() { return *seat_of_this_process(); }

}  // namespace tera::test

int main(int argc, char** argv) {
  constexpr int skipped = 77;
  testing::InitGoogleTest(&argc, argv);
  if (!tera::cuda::usable() || tera::nccl::query_nccl().version.empty()) {
    std::fputs("skipped: there is no GPU that this program can use, or no NCCL\n", stderr);
    return skipped;
  }
  return tera::test::run_tests();
}
