// Ranks as threads that share one GPU, each with a stream of its own: the body that every Comm must pass.

#include <gtest/gtest.h>

#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/comm/world.h"
#include "tera/ops/copy.h"
#include "tests/parallel/comm_body.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;

TEST(CudaComm, ThreadsOnOneGpu) {
  for (int ranks : {1, 2, 4})
    run_threads(ranks, {.timeout = 60s}, [&](RankHandle& rank_handle) {
      const cuda::CudaParts gpu = cuda::make_cuda({});
      const auto world = rank_handle.join(*gpu.ops);
      check_everything({*world, *gpu.ops, *gpu.device});
      gpu.ops->finish(gpu.ops->record());
      world->barrier();  // no rank frees memory before all are done with it
    });
}

// What one stream writes, another one waits for without the host.
TEST(CudaQueue, OneQueueWaitsForAnother) {
  const cuda::CudaParts a = cuda::make_cuda({}), b = cuda::make_cuda({});
  constexpr std::int64_t n = std::int64_t{1} << 28;
  const Tensor x = make_tensor(a.device->allocate(n).data(), shape(n), DType::u8);
  const Tensor y = make_tensor(b.device->allocate(n).data(), shape(n), DType::u8);
  for (int round = 1; round <= 20; ++round) {
    (*a.ops)(FillArgs{.out = x, .value = static_cast<double>(round)});
    b.ops->wait(a.ops->record());
    (*b.ops)(CopyArgs{.src = x, .dst = y});
    a.ops->wait(b.ops->record());
  }
  std::byte last{};
  b.ops->to_host(y.rows(n - 1, n), {&last, 1});
  EXPECT_EQ(last, std::byte{20});
}

}  // namespace
}  // namespace tera::test
