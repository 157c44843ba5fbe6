// What must be equal between layouts to the bit, and special cases. That each layout trains as one rank does is tested
// in sweep_draw_test.cpp and sweep_slow_test.cpp.

#include <gtest/gtest.h>

#include "tests/parallel/sweep_expect.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

struct SweepRun {
  explicit SweepRun(const SweepCase& a) : one(a) { run_on_threads(one, 3, result); }
  SweepCase one;
  SweepResult result;
};

void expect_same_bits(const SweepRun& a, const SweepCase& b) {
  SCOPED_TRACE(a.one.describe() + "\nagainst " + b.describe());
  const SweepResult& first = a.result;
  SweepResult second;
  run_on_threads(b, 3, second);
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.norm, second.norm);
  EXPECT_EQ(first.initial_loss, second.initial_loss);
  EXPECT_TRUE(first.gradients.tensors() == second.gradients.tensors());
  EXPECT_TRUE(first.weights.tensors() == second.weights.tensors());
  EXPECT_TRUE(first.peaks_as_planned && second.peaks_as_planned);
}

void expect_same_bits(const SweepCase& a, const SweepCase& b) { expect_same_bits(SweepRun(a), b); }

SweepCase with_capacity(const Overrides& layout, const std::string& factor) {
  return {"sweep_experts", 4, layout + Overrides{"model.moe.expert_rank_capacity_factor=" + factor}};
}

// A run with too little expert capacity ends, and its message names a factor that would have held the rows at hand.
// Later steps may have more rows, so following the messages leads to a factor that holds all, and each is larger than
// the one before.
void expect_to_name_enough_capacity(const Overrides& layout) {
  const bool exchanges = std::ranges::find(layout, all_to_all.front()) != layout.end();
  std::string factor = "1";
  int rounds = 0;
  for (SweepResult result; rounds < 8; ++rounds) {
    std::string message;
    try {
      run_on_threads(with_capacity(layout, factor), sweep_steps, result);
      break;
    } catch (const UserError& error) {
      message = error.what();
    }
    EXPECT_TRUE(message.starts_with("rank ") && !contains(message.substr(1), "rank ")) << message;
    EXPECT_TRUE(contains(message, ": model.moe.expert_rank_capacity_factor=" + factor + ": the experts of "))
        << message;
    EXPECT_EQ(contains(message, "experts of model.layers."), exchanges) << "else the layer is not known: " << message;
    EXPECT_TRUE(contains(message, " would have held them, and 0 plans for the worst case")) << message;
    EXPECT_FALSE(contains(message, "\n")) << message;
    const std::size_t at = message.find(" came; ");
    ASSERT_NE(at, std::string::npos) << message;
    const std::string named = message.substr(at + 7, message.find(' ', at + 7) - at - 7);
    EXPECT_GT(std::stod(named), std::stod(factor)) << message;
    factor = named;
  }
  EXPECT_GE(rounds, 1) << "1 was too little";
  EXPECT_LT(rounds, 8) << factor;
}

// Expert capacity as a multiple of an even load: a sufficient one changes no bit, and too little ends the run.
TEST(Sweep, CapacityForRowsOfExperts) {
  const std::vector<std::pair<Overrides, const char*>> layouts{{ep4, "3.2"},
                                                               {ep4 + all_to_all, "3.2"},
                                                               {tp2 + sp + ep4 + etp1 + full, "3.2"},
                                                               {tp2 + ep2, "1.6"},
                                                               {tp2 + ep2 + all_to_all, "1.6"}};
  for (const auto& [layout, enough] : layouts) {
    const SweepCase all{"sweep_experts", 4, layout};
    expect_same_bits(all, with_capacity(layout, enough));
    SweepResult baseline, some;
    run_on_threads(all, 1, baseline);
    run_on_threads(with_capacity(layout, enough), 1, some);
    EXPECT_LT(some.max_bytes, baseline.max_bytes);
    expect_to_name_enough_capacity(layout);
  }
}

std::map<std::string, std::vector<float>> of_kind(const Assembled& all, const std::string& kind) {
  std::map<std::string, std::vector<float>> some;
  for (const auto& [name, values] : all.tensors())
    if (name.find(kind) != std::string::npos) some[name] = values;
  return some;
}

// A step moves each element of a bias by the rate or not at all, away from experts that were chosen more than the mean;
// the expert shares are the fractions of choices in the last step.
TEST(Sweep, BiasAndSharesFollowTheChoices) {
  SweepResult two, three;
  run_on_threads({.config = "sweep_moe_bias"}, 2, two);
  run_on_threads({.config = "sweep_moe_bias"}, 3, three);
  constexpr std::size_t experts = 6, layers = 3;
  constexpr float rate = 0.02f;
  ASSERT_EQ(three.choices.size(), layers * experts);
  const auto before = of_kind(two.router_state, "e_score_correction_bias"),
             after = of_kind(three.router_state, "e_score_correction_bias"),
             shares = of_kind(three.router_state, "shares");
  ASSERT_EQ(after.size(), layers);
  ASSERT_EQ(shares.size(), layers);
  const tera::Setup setup = sweep_setup({.config = "sweep_moe_bias"});
  const auto all = setup.batch.global_batch * setup.batch.seq_length * setup.model.moe->router.topk;
  std::size_t layer = 0, moved = 0;
  for (const auto& [name, bias] : after) {
    std::int64_t sum = 0;
    const std::vector<float>& share = shares.at("optimizer.expert_shares." + name.substr(0, name.rfind('.')));
    for (std::size_t e = 0; e < experts; ++e) sum += three.choices[layer * experts + e];
    EXPECT_EQ(sum, all) << "every choice of every row is counted once";
    for (std::size_t e = 0; e < experts; ++e) {
      const std::int64_t off = sum - three.choices[layer * experts + e] * static_cast<std::int64_t>(experts);
      const float step = off > 0 ? rate : off < 0 ? -rate : 0;
      EXPECT_EQ(bias[e], before.at(name)[e] + step) << name << " " << e;
      EXPECT_FLOAT_EQ(share[e], static_cast<float>(three.choices[layer * experts + e]) / static_cast<float>(sum));
      moved += step != 0;
    }
    ++layer;
  }
  EXPECT_GT(moved, layers);
}

// F of a recomputed layer runs twice, but counts its choices once. The time of B does not matter either.
TEST(Sweep, ExpertsCountOnce) {
  SweepResult alone;
  run_on_threads({.config = "sweep_moe_bias"}, 3, alone);
  for (const auto& [ranks, layout] :
       std::vector<std::pair<int, Overrides>>{{1, full}, {1, selective}, {2, pp2 + zero_bubble + full}}) {
    SweepResult other;
    run_on_threads({"sweep_moe_bias", ranks, layout}, 3, other);
    EXPECT_EQ(other.choices, alone.choices);
    EXPECT_TRUE(other.router_state.tensors() == alone.router_state.tensors());
  }
  // A frozen bias stays; the expert shares are counted all the same.
  SweepResult frozen;
  run_on_threads({"sweep_moe_bias", 1, {"model.freeze=['*.mlp.gate.*','*.mlp.gate']"}}, 3, frozen);
  for (const auto& [name, bias] : of_kind(frozen.router_state, "e_score_correction_bias"))
    EXPECT_EQ(bias, std::vector<float>(6, 0.0f)) << name;
  EXPECT_NE(of_kind(frozen.router_state, "shares").begin()->second, std::vector<float>(6, 0.0f));
}

// Where tokens are dropped within one microbatch, the dropped ones are the same in every layout.
TEST(Sweep, RowsOfExpertsThatAreDropped) {
  const Overrides by_weight{"model.moe.expert_capacity_factor=1.0"},
      by_position = by_weight + Overrides{"model.moe.token_drop_policy=position"};
  const std::vector<std::pair<int, Overrides>> layouts{{2, zero1},
                                                       {2, tp2},
                                                       {2, tp2 + sp + full},
                                                       {2, tp2 + ep2 + etp1},
                                                       {4, tp4 + sp + ep2 + etp2},
                                                       {4, tp2 + sp + pp2 + ep2 + etp1 + zero_bubble + selective},
                                                       {2, ep2 + all_to_all},
                                                       {4, ep4 + all_to_all + zero3 + full},
                                                       {4, ep2 + etp2 + all_to_all},
                                                       {4, pp2 + ep2 + all_to_all + zero_bubble + selective}};
  const SweepLimits limits{.steps = 4};
  SweepResult baseline;
  run_on_threads({.config = "sweep_experts"}, limits.steps, baseline);
  for (const Overrides& drop : {by_weight, by_position}) {
    SweepResult alone;
    run_on_threads({.config = "sweep_experts", .overrides = drop}, limits.steps, alone);
    EXPECT_GT(std::abs(alone.loss[1] - baseline.loss[1]), 1e-5) << "nothing is dropped";
    for (const auto& [ranks, layout] : layouts)
      expect_like_one_rank({"sweep_experts", ranks, drop + layout}, alone, limits);
  }
}

// Schedule, overlap and recomputation change no bit.
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
      {2, pp2 + zbv, {p2p_off, selective}},
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
    for (const auto& group : groups) {
      const SweepRun base({config, group.ranks, group.base});
      for (const auto& variant : group.variants) expect_same_bits(base, {config, group.ranks, group.base + variant});
    }
}

// Computing the shared expert or another microbatch while rows are in flight to experts changes no bit.
TEST(Sweep, OverlapOfExpertsChangesNoBit) {
  const Overrides one_at_a_time{"train.micro_batch_size=1"};
  const Overrides tp_overlap{"comm_overlap.tp_comm_overlap=true"};
  const Overrides gather{"comm_overlap.overlap_grad_reduce=true", "comm_overlap.overlap_param_gather=true"};
  const Overrides dropped{"model.moe.expert_capacity_factor=1.0"}, dropout{"model.hidden_dropout=0.2"};
  const Overrides frozen{"model.freeze=['*.experts.*down*']"}, tied{"model.untie_embeddings_and_output_weights=false"};
  const Overrides growing{"train.rampup_batch_size=[4,4,12]", "train.train_iters=0", "train.train_samples=100",
                          "train.micro_batch_size=1", "train.global_batch_size=16"};
  const std::vector<std::pair<int, Overrides>> layouts{{2, ep2},
                                                       {2, ep2 + all_to_all + one_at_a_time},
                                                       {2, ep2 + all_to_all + tied},
                                                       {4, pp2 + ep2 + zbv + tied},
                                                       {2, ep2 + all_to_all + dropped + dropout},
                                                       {2, ep2 + all_to_all + selective + frozen},
                                                       {2, tp2 + ep2 + etp1},
                                                       {2, tp2 + sp + ep2 + etp1 + tp_overlap},
                                                       {4, tp2 + ep2 + all_to_all},
                                                       {4, ep2 + etp2 + all_to_all + dropout},
                                                       {4, ep4 + all_to_all + zero1 + buckets + gather},
                                                       {4, ep2 + zero2 + overlap},
                                                       {4, pp2 + ep2 + all_to_all},
                                                       {4, pp2 + ep2 + growing},
                                                       {4, pp2 + vp2 + ep2 + all_to_all + one_at_a_time},
                                                       {4, pp2 + vp2 + ep2 + all_to_all + growing},
                                                       {4, pp2 + ep2 + zero_bubble + all_to_all},
                                                       {4, pp2 + ep2 + zbv + one_at_a_time},
                                                       {8, pp4 + ep2 + all_to_all + one_at_a_time},
                                                       {8, pp4 + ep2 + zero_bubble + selective}};
  for (const auto& [ranks, layout] : layouts) {
    const SweepRun apart({"sweep_experts", ranks, layout});
    for (const Overrides& how : {shared_overlap, together, shared_overlap + together})
      expect_same_bits(apart, {"sweep_experts", ranks, layout + how});
  }
}

// Offloading activations to the host changes no bit.
TEST(Sweep, OffloadChangesNoBit) {
  const Overrides tp_overlap{"comm_overlap.tp_comm_overlap=true"}, one_at_a_time{"train.micro_batch_size=1"};
  const Overrides first_layer{"model.recompute_granularity=full", "model.recompute_method=block",
                              "model.recompute_num_layers=1"};
  const std::vector<std::pair<int, Overrides>> layouts{{1, {}},
                                                       {2, tp2},
                                                       {4, tp4 + sp + tp_overlap},
                                                       {2, pp2},
                                                       {4, pp4 + one_at_a_time},
                                                       {2, pp2 + zero_bubble},
                                                       {2, pp2 + zbv},
                                                       {2, pp2 + vp2 + one_at_a_time},
                                                       {4, zero1 + buckets + overlap},
                                                       {4, zero3 + overlap},
                                                       {8, tp2 + sp + pp2 + zero3 + zero_bubble}};
  for (const char* config : {"sweep_llama", "sweep_gpt"})
    for (const auto& [ranks, layout] : layouts) {
      expect_same_bits({config, ranks, layout}, {config, ranks, layout + offload});
      expect_same_bits({config, ranks, layout + selective}, {config, ranks, layout + selective + offload_blocks});
      expect_same_bits({config, ranks, layout + full}, {config, ranks, layout + full + offload_x});
      expect_same_bits({config, ranks, layout + first_layer}, {config, ranks, layout + first_layer + offload});
    }
}

// Offloading rows of experts changes no bit, though as many rows are copied to the host as the capacity holds.
TEST(Sweep, OffloadOfExpertsChangesNoBit) {
  const Overrides capacity{"model.moe.expert_rank_capacity_factor=3.2"},
      dropped{"model.moe.expert_capacity_factor=1.0"};
  const std::vector<SweepCase> cases{{"sweep_experts", 1, {}},
                                     {"sweep_experts", 2, ep2},
                                     {"sweep_experts", 2, tp2 + sp + ep2 + etp1 + all_to_all},
                                     {"sweep_experts", 4, ep4 + all_to_all + capacity},
                                     {"sweep_experts", 4, ep2 + zero3 + overlap + dropped},
                                     {"sweep_experts", 4, pp2 + ep2 + zero_bubble},
                                     {"sweep_experts", 4, pp2 + vp2 + ep2 + all_to_all},
                                     {"sweep_moe_bias", 4, tp2 + pp2 + zbv},
                                     {"sweep_mla", 4, tp2 + sp + ep4 + etp1}};
  for (const SweepCase& one : cases) {
    const auto with = [&](const Overrides& more) { return SweepCase{one.config, one.ranks, one.overrides + more}; };
    expect_same_bits(one, with(offload));
    expect_same_bits(with(selective), with(selective + offload_blocks));
  }
}

// The values of an earlier step in gradient memory, which nobody clears as a whole, change no bit.
TEST(Sweep, OldGradientsChangeNoBit) {
  const Overrides tied{"model.untie_embeddings_and_output_weights=false"}, frozen{"model.freeze=['*.mlp.*','*embed*']"};
  const Overrides one_at_a_time{"train.micro_batch_size=1"}, only_one{"train.micro_batch_size=8"};
  const Overrides few_rows{"model.moe.num_experts=64", "train.micro_batch_size=1", "train.global_batch_size=2"};
  const std::vector<SweepCase> cases{{"sweep_llama", 1, {}},
                                     {"sweep_llama", 2, only_one},
                                     {"sweep_llama", 2, tied + tp2},
                                     {"sweep_gpt", 4, tied + pp2 + zero1 + buckets + overlap},
                                     {"sweep_llama", 2, tied + pp2 + zbv},
                                     {"sweep_llama", 4, zero1 + buckets + overlap},
                                     {"sweep_gpt", 4, zero2 + overlap},
                                     {"sweep_llama", 4, tp2 + sp + zero3},
                                     {"sweep_llama", 4, tied + pp2 + zero3 + zero_bubble},
                                     {"sweep_gpt", 4, pp2 + vp2 + zero2 + one_at_a_time},
                                     {"sweep_llama", 4, frozen + zero3 + full},
                                     {"sweep_llama", 4, packed_documents + pp2 + zero2},
                                     {"sweep_experts", 1, few_rows},
                                     {"sweep_experts", 2, few_rows + ep2 + all_to_all},
                                     {"sweep_experts", 2, few_rows + zero3},
                                     {"sweep_experts", 4, pp2 + ep2 + zero_bubble + together},
                                     {"sweep_mtp", 4, tied + pp2 + zero2},
                                     {"sweep_mla", 4, tp2 + sp + pp2 + zero1}};
  for (SweepCase one : cases) {
    const SweepCase spoiled = one;
    one.old_gradients = 0;
    expect_same_bits(one, spoiled);
  }
}

// Documents must make a difference, or the other tests of them would prove little.
TEST(Sweep, DocumentsMakeADifference) {
  const Overrides packed{"dataset.reset_attention_mask=true", "dataset.reset_position_ids=true",
                         "dataset.eod_mask_loss=true"};
  SweepResult apart, baseline;
  run_on_threads({.overrides = packed}, 2, apart);
  run_on_threads({}, 2, baseline);
  EXPECT_GT(std::abs(apart.loss[1] - baseline.loss[1]), 1e-4);
}

}  // namespace
}  // namespace tera::test
