// Training steps of ranks that are processes on GPUs: like those of one rank, within rounding.

#include <gtest/gtest.h>

#include "tests/nccl/nccl_main.h"
#include "tests/parallel/sweep_expect.h"

namespace tera::test {
namespace {

const Overrides gather{"comm_overlap.overlap_grad_reduce=true", "comm_overlap.overlap_param_gather=true"};
const Overrides tp_overlap{"comm_overlap.tp_comm_overlap=true"};

std::vector<Overrides> layouts(int ranks) {
  if (ranks == 2)
    return {tp2,
            tp2 + sp + tp_overlap,
            pp2,
            pp2 + zero_bubble,
            pp2 + zbv,
            pp2 + vp2 + full,
            {},
            zero1 + buckets + gather,
            zero2 + overlap,
            zero3 + gather};
  return {tp2 + pp2, tp2 + sp + zero1 + gather, pp2 + zero3 + overlap, pp4 + zero_bubble};
}

std::vector<Overrides> expert_layouts_of(int ranks) {
  if (ranks == 2)
    return {ep2,
            ep2 + all_to_all,
            tp2 + sp + ep2 + etp1 + all_to_all,
            tp2 + ep2 + etp1,
            ep2 + shared_overlap,
            ep2 + all_to_all + together,
            tp2 + sp + ep2 + etp1 + all_to_all + shared_overlap + together};
  return {tp2 + ep2 + all_to_all,
          tp2 + sp + ep4 + etp1 + zero3,
          pp2 + ep2 + all_to_all + zero_bubble,
          ep4 + all_to_all + zero1 + gather,
          pp2 + ep2 + all_to_all + together,
          pp2 + vp2 + ep2 + all_to_all + shared_overlap + together};
}

void sweep(const std::string& config, const Overrides& precision, const SweepLimits& limits,
           const std::vector<Overrides>& layouts) {
  const Overrides on_gpu = Overrides{"dist.device=cuda"} + precision;
  SweepResult alone;
  run_on_threads({.config = config, .overrides = on_gpu}, limits.steps, alone);
  RankHandle& rank_handle = nccl_rank_handle();
  for (const Overrides& layout : layouts) {
    const SweepCase one{.config = config, .ranks = rank_handle.size(), .overrides = layout + on_gpu};
    SweepResult got;
    run_rank(one, rank_handle, limits.steps, got);
    expect_part_like_one_rank(one, got, alone, limits);
  }
}

// Where there is no time for the whole list, these layouts make each kind of call at least once.
TEST(NcclSweepFew, Fp32) {
  const SweepLimits limits{.loss = 3e-6, .norm = 3e-5, .slack = 2, .steps = 2};
  const Overrides fp32{"mixed_precision.precision=fp32"};
  if (nccl_rank_handle().size() == 2) {
    sweep("sweep_llama", fp32, limits, {tp2 + sp + tp_overlap, pp2 + vp2, zero1 + buckets + gather, zero3 + gather});
    sweep("sweep_experts", fp32, limits, {ep2 + all_to_all + together});
    sweep("sweep_gpt", fp32, limits, {cp2 + cp_ring, cp2 + cp_all_gather, cp2 + ulysses});
  } else {
    sweep("sweep_llama", fp32, limits, {tp2 + pp2 + zero_bubble, pp2 + zero3 + overlap});
    sweep("sweep_experts", fp32, limits, {tp2 + sp + ep4 + etp1 + zero3});
  }
}

TEST(NcclSweep, Fp32) {
  const SweepLimits limits{.loss = 3e-6, .norm = 3e-5, .slack = 2};
  sweep("sweep_llama", {"mixed_precision.precision=fp32"}, limits, layouts(nccl_rank_handle().size()));
  sweep("sweep_gpt", {"mixed_precision.precision=fp32"}, limits, layouts(nccl_rank_handle().size()));
}

TEST(NcclSweep, Experts) {
  const SweepLimits limits{.loss = 3e-6, .norm = 3e-5, .slack = 2};
  sweep("sweep_experts", {"mixed_precision.precision=fp32"}, limits, expert_layouts_of(nccl_rank_handle().size()));
  sweep("sweep_mtp", {"mixed_precision.precision=fp32"}, limits, expert_layouts_of(nccl_rank_handle().size()));
}

TEST(NcclSweep, Context) {
  const SweepLimits limits{.loss = 3e-6, .norm = 3e-5, .slack = 2};
  const std::vector<Overrides> layouts =
      nccl_rank_handle().size() == 2 ? std::vector{cp2, cp2 + zero3 + gather}
                                     : std::vector{cp2 + tp2 + sp, cp2 + pp2 + zero_bubble, cp2 + zero1 + gather};
  std::vector<Overrides> all;
  for (const Overrides& layout : layouts)
    for (const Overrides& how : {ulysses, cp_all_gather, cp_ring}) all.push_back(layout + how);
  sweep("sweep_gpt", {"mixed_precision.precision=fp32"}, limits, all);
  sweep("sweep_gpt", Overrides{"mixed_precision.precision=fp32"} + packed_documents, limits, all);
  sweep("sweep_mla", {"mixed_precision.precision=fp32"}, limits, all);
}

TEST(NcclSweep, DynamicContext) {
  const SweepLimits limits{.loss = 3e-6, .norm = 3e-5, .slack = 2, .same_rows = false};
  const std::vector<Overrides> layouts = nccl_rank_handle().size() == 2
                                             ? std::vector{cp2, cp2 + zero3 + gather}
                                             : std::vector{cp2 + tp2 + sp, cp4, cp2 + pp2 + zero_bubble};
  std::vector<Overrides> all;
  for (const Overrides& layout : layouts)
    for (const Overrides& how : {ulysses, cp_all_gather, cp_ring}) all.push_back(layout + how + dynamic);
  const Overrides assigned{"mixed_precision.precision=fp32", "train.seq_length=16", "train.micro_batch_size=1"};
  sweep("sweep_gpt", assigned + packed_documents, limits, all);
}

TEST(NcclSweep, Bf16) {
  const SweepLimits limits{.loss = 5e-3, .norm = 5e-2, .gradients = DType::bf16, .slack = 8};
  sweep("sweep_llama", {"mixed_precision.precision=bf16"}, limits, layouts(nccl_rank_handle().size()));
}

}  // namespace
}  // namespace tera::test
