// One model, many layouts: each trains as one rank does.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/parallel/sweep_body.h"
#include "tests/support/close.h"
#include "tests/support/count_allocations.h"

namespace tera::test {
namespace {

constexpr int steps = 10;

const SweepResult& one_rank(const std::string& config) {
  static std::map<std::string, SweepResult> known;
  const auto [found, fresh] = known.try_emplace(config);
  if (fresh) play_threads({.config = config}, steps, found->second);
  return found->second;
}

void expect_close(const Assembled& got, const Assembled& want, std::int64_t terms) {
  ASSERT_TRUE(got.complete());
  ASSERT_EQ(got.tensors().size(), want.tensors().size());
  for (const auto& [name, expected] : want.tensors()) {
    const std::vector<float>& values = got.tensors().at(name);
    double largest = 0, worst = 0;
    for (const float value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
    for (std::size_t i = 0; i < expected.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(values[i]) - static_cast<double>(expected[i])));
    EXPECT_LE(worst, tolerance(DType::f32, terms, largest)) << name;
  }
}

void expect_sound(const SweepResult& result) {
  EXPECT_TRUE(result.peaks_as_planned);
  if (can_count_allocations()) {
    EXPECT_EQ(result.allocations, 0);
  }
  EXPECT_TRUE(result.weights.complete());
}

void expect_like_one_rank(const SweepCase& one) {
  SCOPED_TRACE(one.describe());
  const SweepResult& want = one_rank(one.config);
  SweepResult got;
  play_threads(one, steps, got);
  expect_sound(got);
  EXPECT_NEAR(got.initial_loss, want.initial_loss, 1e-6 * want.initial_loss);
  ASSERT_EQ(got.loss.size(), want.loss.size());
  for (std::size_t i = 0; i < want.loss.size(); ++i) {
    EXPECT_NEAR(got.loss[i], want.loss[i], 1e-6 * want.loss[i]) << "step " << i;
    EXPECT_NEAR(got.norm[i], want.norm[i], 1e-5 * want.norm[i]) << "step " << i;
  }
  const tera::Setup setup = sweep_setup({.config = one.config});
  expect_close(got.gradients, want.gradients, setup.batch.global_batch * setup.batch.seq_length);
}

void expect_same_bits(const SweepCase& a, const SweepCase& b) {
  SCOPED_TRACE(a.describe() + "\nagainst " + b.describe());
  SweepResult first, second;
  play_threads(a, 3, first);
  play_threads(b, 3, second);
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.norm, second.norm);
  EXPECT_EQ(first.initial_loss, second.initial_loss);
  EXPECT_TRUE(first.gradients.tensors() == second.gradients.tensors());
  EXPECT_TRUE(first.weights.tensors() == second.weights.tensors());
}

Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Overrides tp2{"dist.tensor_model_parallel_size=2"}, tp4{"dist.tensor_model_parallel_size=4"};
const Overrides sp{"dist.sequence_parallel=true"};
const Overrides pp2{"dist.pipeline_model_parallel_size=2"}, pp4{"dist.pipeline_model_parallel_size=4"};
const Overrides zero1{"ddp.data_parallel_sharding_strategy=optim"};
const Overrides zero2{"ddp.data_parallel_sharding_strategy=optim_grads"};
const Overrides zero3{"ddp.data_parallel_sharding_strategy=optim_grads_params"};
const Overrides buckets{"ddp.bucket_size=3000"};
const Overrides overlap{"comm_overlap.overlap_grad_reduce=true"};
const Overrides zero_bubble{"dist.pipeline_schedule=zero_bubble"};
const Overrides zero_bubble_v{"dist.pipeline_schedule=zero_bubble_v"};
const Overrides vp2{"dist.virtual_pipeline_model_parallel_size=2"};
const Overrides full{"model.recompute_granularity=full"};
const Overrides selective{"model.recompute_granularity=selective", "model.recompute_modules=[layernorm,activation]"};

struct Named {
  const char* name;
  int ranks;
  Overrides overrides;
};

// Every combination of these that fits on 8 ranks; each gets the next recompute and the next overlap in turn.
std::vector<SweepCase> layouts() {
  const std::vector<Named> tensor{
      {"", 1, {}}, {"tp2", 2, tp2}, {"tp2sp", 2, tp2 + sp}, {"tp4", 4, tp4}, {"tp4sp", 4, tp4 + sp}};
  const std::vector<Named> pipeline{{"", 1, {}},
                                    {"pp2", 2, pp2},
                                    {"pp2zb", 2, pp2 + zero_bubble},
                                    {"pp2v", 2, pp2 + zero_bubble_v},
                                    {"pp2i", 2, pp2 + vp2},
                                    {"pp4", 4, pp4},
                                    {"pp4zb", 4, pp4 + zero_bubble}};
  const std::vector<Named> data{{"", 1, {}},         {"dp2", 2, {}},      {"dp2z1", 2, zero1 + buckets},
                                {"dp2z2", 2, zero2}, {"dp2z3", 2, zero3}, {"dp4", 4, buckets},
                                {"dp4z1", 4, zero1}, {"dp4z2", 4, zero2}, {"dp4z3", 4, zero3}};
  const std::vector<Overrides> recompute{
      {},
      full,
      selective,
      {"model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=2"},
      {"model.recompute_granularity=full", "model.recompute_method=block", "model.recompute_num_layers=1"}};
  std::vector<SweepCase> all;
  for (const auto& t : tensor)
    for (const auto& p : pipeline)
      for (const auto& d : data) {
        const int ranks = t.ranks * p.ranks * d.ranks;
        if (ranks == 1 || ranks > 8) continue;
        Overrides overrides = t.overrides + p.overrides + d.overrides + recompute[all.size() % recompute.size()];
        if (d.ranks > 1 && all.size() % 2 == 0) overrides = overrides + overlap;
        all.push_back({.ranks = ranks, .overrides = overrides});
      }
  return all;
}

// Every second layout for each model here, the others in the slow sweep.
void sweep(const std::string& config, std::size_t first, std::size_t stride) {
  const std::vector<SweepCase> all = layouts();
  std::size_t played = 0;
  for (std::size_t i = first; i < all.size(); i += stride, ++played) {
    SweepCase one = all[i];
    one.config = config;
    expect_like_one_rank(one);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GE(played, 60u);
}

TEST(Sweep, Llama) { sweep("sweep_llama", 0, 2); }
TEST(Sweep, Gpt) { sweep("sweep_gpt", 1, 2); }

// What changes when things happen, and what is kept, changes no bit.
TEST(Sweep, ScheduleOverlapAndRecomputeChangeNoBit) {
  const Overrides p2p_off{"comm_overlap.overlap_p2p_comm=false"}, tp_overlap{"comm_overlap.tp_comm_overlap=true"};
  const Overrides gather{"comm_overlap.overlap_grad_reduce=true", "comm_overlap.overlap_param_gather=true"};
  const Overrides groups_of_3{"dist.microbatch_group_size_per_vp_stage=3"};
  struct Group {
    int ranks;
    Overrides base;
    std::vector<Overrides> variants;
  };
  const std::vector<Group> groups{
      {2, pp2, {zero_bubble, p2p_off, full, zero_bubble + selective}},
      {4, pp4, {zero_bubble, zero_bubble + full, p2p_off}},
      {2, pp2 + vp2, {groups_of_3, p2p_off, full}},
      {2, pp2 + zero_bubble_v, {p2p_off, selective}},
      {2, tp2, {tp_overlap, full, tp_overlap + selective}},
      {2, tp2 + sp, {tp_overlap, tp_overlap + full}},
      {4, tp4 + sp, {tp_overlap + selective, full}},
      {4, buckets, {overlap, full}},
      {4, zero1 + buckets, {overlap, gather}},
      {2, zero2, {overlap, full}},
      {4, zero3, {overlap, gather + full}},
      {8, tp2 + sp + pp2 + zero1 + buckets, {gather + tp_overlap, zero_bubble + gather, full + p2p_off}},
      {8, tp2 + pp2 + zero3, {gather, zero_bubble, zero_bubble + full + overlap}},
  };
  for (const char* config : {"sweep_llama", "sweep_gpt"})
    for (const auto& group : groups)
      for (const auto& variant : group.variants)
        expect_same_bits({config, group.ranks, group.base}, {config, group.ranks, group.base + variant});
}

TEST(SweepSlow, AllLayoutsOfLlama) { sweep("sweep_llama", 0, 1); }
TEST(SweepSlow, AllLayoutsOfGpt) { sweep("sweep_gpt", 0, 1); }

}  // namespace
}  // namespace tera::test
