#include "tests/parallel/sweep_expect.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tera::test {
namespace {

void expect_close(const Assembled& got, const Assembled& want, const SweepLimits& limits, const SweepCase& one) {
  const tera::Setup setup = sweep_setup({.config = one.config});
  const std::int64_t terms = limits.terms > 0 ? limits.terms : setup.batch.global_batch * setup.batch.seq_length;
  for (const auto& [name, expected] : want.tensors()) {
    double largest = 0;
    for (const float value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
    EXPECT_LE(got.worst_difference(name, expected), limits.slack * tolerance(limits.gradients, terms, largest)) << name;
  }
}

void expect_losses(const SweepResult& got, const SweepResult& want, const SweepLimits& limits) {
  EXPECT_NEAR(got.initial_loss, want.initial_loss, limits.loss * want.initial_loss);
  ASSERT_EQ(got.loss.size(), want.loss.size());
  for (std::size_t i = 0; i < want.loss.size(); ++i) {
    EXPECT_NEAR(got.loss[i], want.loss[i], limits.loss * want.loss[i]) << "step " << i;
    EXPECT_NEAR(got.norm[i], want.norm[i], limits.norm * want.norm[i]) << "step " << i;
  }
  ASSERT_EQ(got.mtp_loss.size(), want.mtp_loss.size());
  for (std::size_t i = 0; i < want.mtp_loss.size(); ++i)
    EXPECT_NEAR(got.mtp_loss[i], want.mtp_loss[i], limits.loss * want.mtp_loss[i]) << "loss ahead " << i;
}

// Router state is the same in every layout, to the bit, as long as every row chooses the same experts.
void expect_same_choices(const SweepResult& got, const SweepResult& want, const SweepLimits& limits) {
  if (limits.gradients != DType::f32 || !limits.same_rows) return;
  EXPECT_TRUE(got.router_state.tensors() == want.router_state.tensors()) << "bias or shares of experts";
  EXPECT_EQ(got.choices, want.choices);
  ASSERT_EQ(got.aux_losses.size(), want.aux_losses.size());
  for (std::size_t i = 0; i < want.aux_losses.size(); ++i)
    EXPECT_NEAR(got.aux_losses[i], want.aux_losses[i], 1e-5 * std::abs(want.aux_losses[i])) << "auxiliary loss " << i;
}

void expect_sound(const SweepResult& result) {
  EXPECT_TRUE(result.peaks_as_planned);
  EXPECT_EQ(result.allocations, 0);
  EXPECT_TRUE(result.weights.complete());
}

struct Named {
  const char* name;
  int ranks;
  Overrides overrides;
};

}  // namespace

void expect_like_one_rank(const SweepCase& one, const SweepResult& want, const SweepLimits& limits) {
  SCOPED_TRACE(one.describe());
  SweepResult got{.start_counting = limits.start_counting, .stop_counting = limits.stop_counting};
  run_on_threads(one, limits.steps, got);
  expect_sound(got);
  EXPECT_EQ(got.degrees & limits.degrees, limits.degrees) << "degrees that were used";
  expect_losses(got, want, limits);
  expect_same_choices(got, want, limits);
  ASSERT_TRUE(got.gradients.complete());
  ASSERT_EQ(got.gradients.tensors().size(), want.gradients.tensors().size());
  for (const auto& [name, expected] : want.gradients.tensors())
    ASSERT_TRUE(got.gradients.tensors().contains(name)) << name;
  expect_close(got.gradients, want.gradients, limits, one);
}

void expect_part_like_one_rank(const SweepCase& one, const SweepResult& got, const SweepResult& want,
                               const SweepLimits& limits) {
  SCOPED_TRACE(one.describe());
  EXPECT_TRUE(got.peaks_as_planned);
  EXPECT_FALSE(got.gradients.tensors().empty());
  if (!got.loss.empty()) expect_losses(got, want, limits);
  if (limits.gradients == DType::f32 && !got.router_state.tensors().empty()) {
    EXPECT_TRUE(got.router_state.is_part_of(want.router_state)) << "bias or shares of experts";
  }
  expect_close(got.gradients, want.gradients, limits, one);
}

std::vector<SweepCase> sweep_layouts() {
  const std::vector<Named> tensor{
      {"", 1, {}}, {"tp2", 2, tp2}, {"tp2sp", 2, tp2 + sp}, {"tp4", 4, tp4}, {"tp4sp", 4, tp4 + sp}};
  const std::vector<Named> pipeline{{"", 1, {}},
                                    {"pp2", 2, pp2},
                                    {"pp2zb", 2, pp2 + zero_bubble},
                                    {"pp2v", 2, pp2 + zbv},
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

std::vector<SweepCase> expert_layouts() {
  struct Layout {
    int ranks;
    Overrides overrides;
  };
  // Ranks that share the experts are those of a tensor-parallel group, a part of one, or of several.
  const std::vector<Layout> layouts{
      {2, ep2},
      {2, ep2 + zero2},
      {2, tp2 + ep2 + etp1},
      {2, tp2 + sp + ep2 + etp1 + full},
      {2, etp2},
      {2, tp2 + etp1},
      {4, ep4 + zero3},
      {4, ep2 + zero1 + buckets + overlap},
      {4, ep2 + etp2 + selective},
      {4, tp2 + ep2},
      {4, tp2 + sp + ep2 + zero3},
      {4, tp2 + ep4 + etp1 + full},
      {4, tp4 + ep2 + etp1},
      {4, tp4 + sp + ep2 + etp2},
      {4, tp2 + sp + ep2 + etp1 + selective},
      {4, pp2 + ep2},
      {4, pp2 + ep2 + zero_bubble},
      {4, pp2 + ep2 + zbv + full},
      {4, pp2 + vp2 + ep2},
      {4, tp2 + pp2 + ep2 + etp1 + zero_bubble},
      {8, ep8 + zero1},
      {8, tp2 + sp + ep4 + etp1 + zero2 + overlap},
      {8, tp2 + pp2 + ep2 + zero1},
      {8, tp2 + sp + pp2 + ep4 + etp1 + zbv},
      {8, pp2 + ep4 + zero3 + overlap},
      {8, tp2 + ep2 + etp4},
      {8, tp4 + ep4 + etp1 + zero3},
      {8, pp4 + ep2 + zero_bubble + selective},
      {2, ep2 + shared_overlap},
      {4, ep2 + etp2 + shared_overlap + together},
      {4, pp2 + ep2 + together},
      {8, tp2 + sp + pp2 + vp2 + ep4 + etp1 + shared_overlap + together},
  };
  std::vector<SweepCase> all;
  for (const auto& [ranks, overrides] : layouts) {
    all.push_back({.config = "sweep_experts", .ranks = ranks, .overrides = overrides});
    if (sweep_setup(all.back()).parallel.mesh.ep > 1)
      all.push_back({.config = "sweep_experts", .ranks = ranks, .overrides = overrides + all_to_all});
  }
  return all;
}

std::vector<DynamicSweep> dynamic_sweeps() {
  // Documents are up to a sequence long, and a rank holds a part of one: all degrees are used.
  const Overrides s16{"train.seq_length=16"}, s64{"train.seq_length=64", "train.global_batch_size=8"};
  const Overrides one{"train.micro_batch_size=1"}, four_groups{"model.num_query_groups=4"};
  const Overrides dropout{"model.hidden_dropout=0.2", "model.attention_dropout=0.1"};
  const Overrides window{"model.window_size=5"},
      no_losses{"model.moe.router_load_balancing_type=none", "model.moe.aux_loss_coeff=0", "model.moe.z_loss_coeff=0",
                "model.moe.router_enable_expert_bias=false"};
  const Overrides up{"model.recompute_granularity=selective", "model.recompute_modules=[layernorm,mla_up_proj]"};
  constexpr std::uint64_t up_to_2 = 1u << 1 | 1u << 2, up_to_4 = up_to_2 | 1u << 4;
  const Overrides packed = packed_documents + one;
  return {
      {{.config = "sweep_llama", .overrides = packed + s16 + four_groups},
       {{2, cp2},
        {4, cp2 + zero1 + buckets + overlap},
        {4, cp2 + zero3 + full},
        {4, cp2 + pp2},
        {4, cp2 + pp2 + zero_bubble + zero2},
        {4, cp2 + pp2 + zbv + offload},
        {4, cp2 + pp2 + vp2 + offload_blocks},
        {4, cp2 + tp2},
        {8, cp2 + tp2 + sp + pp2 + zero_bubble + selective}},
       up_to_2},
      {{.config = "sweep_llama", .overrides = packed + s16 + four_groups},
       {{4, cp4}, {8, cp4 + zero3 + overlap}, {8, cp4 + pp2 + vp2}},
       up_to_4},
      {{.config = "sweep_gpt", .overrides = packed + s64 + dropout}, {{4, cp4 + full}, {4, cp2 + tp2 + sp}}, up_to_2},
      {{.config = "sweep_llama", .overrides = packed + s16 + window + four_groups}, {{4, cp4}, {4, cp2}}, up_to_2},
      {{.config = "sweep_mla", .overrides = packed + s16 + no_losses},
       {{4, cp4}, {4, cp2 + tp2 + sp + up}, {4, cp2 + ep2 + all_to_all + zero1}},
       up_to_2},
      {{.config = "sweep_experts", .overrides = packed + s16 + four_groups + no_losses},
       {{2, cp2 + ep2}, {4, cp4 + ep4 + all_to_all}, {8, cp2 + pp2 + ep2 + all_to_all + zero_bubble}},
       up_to_2},
  };
}

std::vector<ContextSweep> context_sweeps() {
  const Overrides s16{"train.seq_length=16"}, four_groups{"model.num_query_groups=4"};
  const Overrides dropout{"model.hidden_dropout=0.2", "model.attention_dropout=0.1"};
  const Overrides qk_norm{"model.qk_layernorm=true"}, window{"model.window_size=5"};
  const Overrides up{"model.recompute_granularity=selective", "model.recompute_modules=[layernorm,mla_up_proj]"};
  const Overrides one_sequence{"train.micro_batch_size=1"};
  const Overrides expert_overlap{"comm_overlap.overlap_moe_expert_parallel_comm=true"};
  const Overrides long_ones{"train.seq_length=320", "train.global_batch_size=2"};
  return {
      {{.config = "sweep_llama"},
       {{2, cp2},
        {2, cp2 + full},
        {4, cp2 + zero1 + buckets + overlap},
        {4, cp2 + zero2 + selective},
        {4, cp2 + zero3 + full},
        {4, cp2 + pp2},
        {4, cp2 + pp2 + zero_bubble + zero1},
        {4, cp2 + pp2 + zbv + offload},
        {4, cp2 + pp2 + vp2 + offload_blocks},
        {8, cp2 + pp4 + zero_bubble + zero3}}},
      {{.config = "sweep_llama", .overrides = four_groups + qk_norm + s16},
       {{4, cp4},
        {4, cp2 + tp2},
        {4, cp2 + tp2 + sp + zero1},
        {8, cp4 + pp2 + one_sequence},
        {4, cp2 + tp2 + sp + offload}}},
      {{.config = "sweep_gpt"}, {{2, cp2}, {4, cp2 + tp2 + sp + zero1}, {8, cp2 + tp2 + pp2 + full}}},
      {{.config = "sweep_gpt", .overrides = dropout + s16},
       {{4, cp4 + full}, {4, cp2 + tp2 + sp}, {8, cp4 + zero3}, {4, cp4 + one_sequence}}},
      {{.config = "sweep_llama", .overrides = packed_documents},
       {{2, cp2}, {4, cp2 + pp2 + zero_bubble}, {8, cp2 + zero3 + full}}},
      {{.config = "sweep_gpt", .overrides = packed_documents + dropout + s16}, {{4, cp4}, {4, cp2 + tp2 + sp}}},
      {{.config = "sweep_llama", .overrides = window + four_groups}, {{2, cp2}, {4, cp2 + tp2 + sp}}},
      {{.config = "sweep_llama", .overrides = packed_documents + window}, {{2, cp2}}},
      // Sequences are longer than the tiles of attention.
      {{.config = "sweep_gpt", .overrides = long_ones}, {{2, cp2}, {4, cp4 + one_sequence}}},
      {{.config = "sweep_gpt", .overrides = long_ones + packed_documents}, {{2, cp2}, {4, cp4}}},
      // Only the first chunk of the zigzag split has targets, so only the first rank has any.
      {{.config = "sweep_llama", .counted_targets = 3}, {{2, cp2}, {4, cp2 + pp2}, {4, cp2 + zero3}}},
      {{.config = "sweep_mla"}, {{2, cp2}, {4, cp2 + tp2}, {4, cp2 + tp2 + sp + up}, {4, cp2 + pp2 + full}}},
      {{.config = "sweep_mla", .overrides = packed_documents + dropout + s16}, {{4, cp4}, {4, cp2 + zero3 + offload}}},
      {{.config = "sweep_experts"},
       {{2, cp2},
        {2, cp2 + ep2},
        {2, cp2 + ep2 + all_to_all},
        {4, cp2 + ep4 + all_to_all + zero3},
        {4, cp2 + pp2 + ep2 + zero_bubble},
        {4, cp2 + pp2 + ep2 + all_to_all + expert_overlap}}},
      {{.config = "sweep_experts", .overrides = four_groups},
       {{4, cp2 + tp2 + ep2}, {4, cp2 + tp2 + sp + ep4 + etp1 + all_to_all}, {8, cp2 + tp2 + sp + ep2 + etp1 + zero1}}},
      {{.config = "sweep_moe_bias"}, {{2, cp2}, {4, cp2 + pp2 + selective}, {4, cp2 + zero2}}},
  };
}

}  // namespace tera::test
