// One layout of each kind of parallelism, the ranks being threads that share one GPU; CudaSweep runs many.

#include <gtest/gtest.h>

#include "tests/parallel/sweep_expect.h"
#include "tests/support/gpu.h"

namespace tera::test {
namespace {

void expect_like_one_rank_of_gpu(const std::string& config, const Overrides& layout) {
  const Overrides on_gpu{"dist.device=cuda", "mixed_precision.precision=fp32"};
  constexpr int steps = 4;
  SweepResult alone;
  run_on_threads({.config = config, .overrides = on_gpu}, steps, alone);
  expect_like_one_rank({config, 2, layout + on_gpu}, alone, {.steps = steps});
}

TEST(CudaLayouts, TensorParallel) { expect_like_one_rank_of_gpu("sweep_llama", tp2 + sp); }
TEST(CudaLayouts, PipelineParallel) { expect_like_one_rank_of_gpu("sweep_gpt", pp2 + zero_bubble); }
TEST(CudaLayouts, ContextParallel) { expect_like_one_rank_of_gpu("sweep_llama", cp2 + cp_ring); }
TEST(CudaLayouts, ExpertParallel) { expect_like_one_rank_of_gpu("sweep_experts", ep2 + all_to_all); }
TEST(CudaLayouts, ShardedParameters) { expect_like_one_rank_of_gpu("sweep_gpt", zero3 + buckets + overlap); }

}  // namespace
}  // namespace tera::test
