// Layouts as on the CPU (tests/parallel/sweep_test.cpp), the ranks being threads that share one GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/parallel/sweep_expect.h"
#include "tests/support/gpu.h"

namespace tera::test {
namespace {

void sweep(const std::string& config, const Overrides& precision, const SweepLimits& limits, std::size_t stride) {
  const Overrides on_gpu = Overrides{"dist.device=cuda"} + precision;
  SweepResult alone;
  run_on_threads({.config = config, .overrides = on_gpu}, sweep_steps, alone);
  const std::vector<SweepCase> all = sweep_layouts();
  for (std::size_t i = 0; i < all.size(); i += stride) {
    SweepCase one{.config = config, .ranks = all[i].ranks, .overrides = all[i].overrides + on_gpu};
    expect_like_one_rank(one, alone, limits);
    if (testing::Test::HasFatalFailure()) return;
  }
}

const Overrides fp32{"mixed_precision.precision=fp32"}, bf16{"mixed_precision.precision=bf16"};

TEST(CudaSweep, Fp32) {
  sweep("sweep_llama", fp32, {}, 9);
  sweep("sweep_gpt", fp32, {}, 11);
}
TEST(CudaSweep, LatentAttention) { sweep("sweep_mla", fp32, {}, 12); }
TEST(CudaSweep, Mtp) { sweep("sweep_mtp", fp32, {}, 12); }

TEST(CudaSweep, Experts) {
  const Overrides on_gpu = Overrides{"dist.device=cuda"} + fp32;
  SweepResult alone;
  run_on_threads({.config = "sweep_experts", .overrides = on_gpu}, sweep_steps, alone);
  const std::vector<SweepCase> all = expert_layouts();
  for (std::size_t i = 0; i < all.size(); i += 4)
    expect_like_one_rank({all[i].config, all[i].ranks, all[i].overrides + on_gpu}, alone, {});
}

// Most experts get no row in a step: their gradients are zero, whatever was in memory before. The 16-bit types use
// Hopper's kernel.
TEST(CudaSweep, ExpertsWithoutRows) {
  const Overrides few_rows{"model.moe.num_experts=64", "train.micro_batch_size=1", "train.global_batch_size=2"};
  const std::vector<std::pair<int, Overrides>> layouts{{1, {}}, {2, ep2 + all_to_all}, {2, zero3}};
  for (const auto& [ranks, layout] : layouts) {
    const SweepCase one{"sweep_experts", ranks, Overrides{"dist.device=cuda"} + bf16 + few_rows + layout};
    SCOPED_TRACE(one.describe());
    SweepResult result;
    run_on_threads(one, sweep_steps, result);
    EXPECT_TRUE(std::ranges::all_of(result.loss, [](double loss) { return std::isfinite(loss); }));
    EXPECT_TRUE(std::ranges::all_of(result.norm, [](double norm) { return norm > 0 && std::isfinite(norm); }));
  }
}

// Calls of two microbatches alternate in one queue.
TEST(CudaSweep, OverlapOfExperts) {
  const Overrides on_gpu = Overrides{"dist.device=cuda"} + fp32;
  const std::vector<std::pair<int, Overrides>> layouts{{2, ep2 + shared_overlap},
                                                       {2, ep2 + all_to_all + together},
                                                       {4, ep2 + etp2 + all_to_all + shared_overlap + together},
                                                       {4, pp2 + vp2 + ep2 + all_to_all + together},
                                                       {4, pp2 + ep2 + zero_bubble + together}};
  SweepResult alone;
  run_on_threads({.config = "sweep_experts", .overrides = on_gpu}, sweep_steps, alone);
  for (const auto& [ranks, layout] : layouts)
    expect_like_one_rank({"sweep_experts", ranks, layout + on_gpu}, alone, {});
}

TEST(CudaSweep, MoeBias) { sweep("sweep_moe_bias", fp32, {}, 13); }

// Context parallelism: every third layout with Ulysses, all-gather and ring attention.
TEST(CudaSweep, Context) {
  const Overrides on_gpu = Overrides{"dist.device=cuda"} + fp32;
  std::size_t number = 0;
  for (const ContextSweep& sweep : context_sweeps()) {
    SweepCase one = sweep.alone;
    one.overrides = one.overrides + on_gpu;
    SweepResult alone;
    run_on_threads(one, sweep_steps, alone);
    for (const auto& [ranks, layout] : sweep.layouts) {
      if (number++ % 3 != 0) continue;
      for (const Overrides& how : {ulysses, cp_all_gather, cp_ring}) {
        SweepCase shared = one;
        shared.ranks = ranks;
        shared.overrides = shared.overrides + layout + how;
        expect_like_one_rank(shared, alone, {});
      }
    }
  }
}

TEST(CudaSweep, DynamicContext) {
  const Overrides on_gpu = Overrides{"dist.device=cuda"} + fp32;
  std::size_t number = 0;
  for (const DynamicSweep& sweep : dynamic_sweeps()) {
    SweepCase one = sweep.alone;
    one.overrides = one.overrides + on_gpu;
    SweepResult alone;
    run_on_threads(one, sweep_steps, alone);
    for (const auto& [ranks, layout] : sweep.layouts)
      for (const Overrides& how : {ulysses, cp_all_gather, cp_ring}) {
        if (number++ % 4 != 0) continue;
        SweepCase shared = one;
        shared.ranks = ranks;
        shared.overrides = shared.overrides + layout + how + dynamic;
        expect_like_one_rank(shared, alone, {.same_rows = false, .degrees = sweep.degrees});
      }
  }
}

// Documents long enough for cuDNN, where one rank has them.
TEST(CudaSweep, DynamicContextBf16) {
  const SweepLimits limits{.loss = 5e-3, .norm = 5e-2, .gradients = DType::bf16, .slack = 8};
  const Overrides on_gpu =
      Overrides{"dist.device=cuda", "train.seq_length=512", "train.micro_batch_size=1", "train.global_batch_size=4"} +
      bf16 + packed_documents;
  SweepResult alone;
  run_on_threads({.config = "sweep_gpt", .overrides = on_gpu}, sweep_steps, alone);
  for (const auto& [ranks, layout] : std::vector<std::pair<int, Overrides>>{{4, cp4}, {4, cp2 + tp2 + sp}})
    for (const Overrides& how : {ulysses, cp_all_gather, cp_ring})
      expect_like_one_rank({"sweep_gpt", ranks, layout + how + on_gpu + dynamic}, alone, limits);
}

TEST(CudaSweep, ContextBf16) {
  const SweepLimits limits{.loss = 5e-3, .norm = 5e-2, .gradients = DType::bf16, .slack = 8};
  // The last two are long enough for cuDNN.
  const Overrides long_one{"train.seq_length=512", "train.micro_batch_size=1", "train.global_batch_size=4"};
  for (const Overrides& model : {Overrides{}, packed_documents, long_one, long_one + packed_documents}) {
    const Overrides on_gpu = Overrides{"dist.device=cuda"} + bf16 + model;
    SweepResult alone;
    run_on_threads({.config = "sweep_gpt", .overrides = on_gpu}, sweep_steps, alone);
    for (const auto& [ranks, layout] : std::vector<std::pair<int, Overrides>>{{2, cp2}, {4, cp2 + tp2 + sp}})
      for (const Overrides& how : {ulysses, cp_all_gather, cp_ring})
        expect_like_one_rank({"sweep_gpt", ranks, layout + how + on_gpu}, alone, limits);
  }
}

TEST(CudaSweepSlow, AllLayoutsOfLlama) { sweep("sweep_llama", fp32, {}, 1); }
TEST(CudaSweepSlow, AllLayoutsOfGpt) { sweep("sweep_gpt", fp32, {}, 1); }

// Several microbatches in flight, and W apart from B.
TEST(CudaSweep, Offload) {
  const std::vector<std::pair<int, Overrides>> layouts{
      {1, {}}, {2, tp2 + sp}, {2, pp2}, {2, pp2 + vp2}, {4, pp4 + zero_bubble}, {2, pp2 + zbv}, {4, zero3}};
  const Overrides on_gpu = Overrides{"dist.device=cuda"} + fp32;
  SweepResult alone;
  run_on_threads({.overrides = on_gpu}, sweep_steps, alone);
  for (const auto& [ranks, layout] : layouts) {
    expect_like_one_rank({.ranks = ranks, .overrides = layout + offload + on_gpu}, alone, {});
    expect_like_one_rank({.ranks = ranks, .overrides = layout + full + offload_x + on_gpu}, alone, {});
  }
}

TEST(CudaSweep, OffloadOfExperts) {
  const std::vector<std::pair<int, Overrides>> layouts{
      {1, {}}, {2, ep2}, {2, tp2 + sp + ep2 + etp1 + all_to_all}, {4, pp2 + ep2 + zero_bubble}};
  const Overrides on_gpu = Overrides{"dist.device=cuda"} + fp32;
  SweepResult alone;
  run_on_threads({.config = "sweep_experts", .overrides = on_gpu}, sweep_steps, alone);
  for (const auto& [ranks, layout] : layouts)
    expect_like_one_rank({"sweep_experts", ranks, layout + offload + on_gpu}, alone, {});
}

// Partial sums are rounded to bf16 before they are added over ranks, and every rounding of an activation propagates
// through the layers after it: several units of bf16.
TEST(CudaSweep, Bf16) {
  const SweepLimits limits{.loss = 5e-3, .norm = 5e-2, .gradients = DType::bf16, .slack = 8};
  sweep("sweep_llama", bf16, limits, 11);
  sweep("sweep_gpt", bf16, limits, 9);
}

TEST(CudaSweep, Fp16) {
  const Overrides fp16{"mixed_precision.precision=fp16", "mixed_precision.initial_loss_scale=4096"};
  const SweepLimits limits{.loss = 1e-3, .norm = 1e-2, .gradients = DType::f16, .slack = 8};
  sweep("sweep_llama", fp16, limits, 13);
  sweep("sweep_gpt", fp16, limits, 11);
}

// All ranks skip a step that overflows on one rank, as on the CPU (tests/parallel/fp16_sweep_test.cpp).
TEST(CudaSweep, Fp16OverflowOnOneRankIsSkippedByAll) {
  const Overrides half{"dist.device=cuda", "mixed_precision.precision=fp16", "mixed_precision.initial_loss_scale=4096",
                       "mixed_precision.hysteresis=1"};
  for (SweepCase one : {SweepCase{.ranks = 2, .overrides = tp2}, SweepCase{.ranks = 2, .overrides = pp2},
                        SweepCase{.ranks = 4, .overrides = zero3}}) {
    one.overrides = one.overrides + half;
    SweepResult before, with;
    run_on_threads(one, 2, before);
    one.overflow = {.step = 2, .rank = one.ranks - 1, .in_loss = true};
    SCOPED_TRACE(one.describe());
    run_on_threads(one, 3, with);
    EXPECT_EQ(with.skipped, one.ranks);
    EXPECT_EQ(with.scale, (std::vector<double>{4096, 4096, 2048}));
    EXPECT_TRUE(with.weights.tensors() == before.weights.tensors());
  }
}

}  // namespace
}  // namespace tera::test
