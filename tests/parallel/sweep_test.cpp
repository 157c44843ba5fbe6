// One model, many layouts: each trains as one rank does.

#include <gtest/gtest.h>

#include "tests/parallel/sweep_expect.h"
#include "tests/support/count_allocations.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

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
  EXPECT_TRUE(first.peaks_as_planned && second.peaks_as_planned);
}

// Every second layout for each model here, the others in the slow sweep.
const SweepResult& one_rank(const std::string& config) {
  static std::map<std::string, SweepResult> known;
  const auto [found, fresh] = known.try_emplace(config);
  if (fresh) play_threads({.config = config}, sweep_steps, found->second);
  return found->second;
}

void sweep(const std::string& config, std::size_t first, std::size_t stride) {
  const std::vector<SweepCase> all = sweep_layouts();
  SweepLimits limits;
  if (can_count_allocations()) {
    limits.start_counting = start_counting_allocations;
    limits.stop_counting = stop_counting_allocations;
  }
  std::size_t played = 0;
  for (std::size_t i = first; i < all.size(); i += stride, ++played) {
    SweepCase one = all[i];
    one.config = config;
    expect_like_one_rank(one, one_rank(config), limits);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GE(played, all.size() / stride);
}

TEST(Sweep, Llama) { sweep("sweep_llama", 0, 2); }
TEST(Sweep, Gpt) { sweep("sweep_gpt", 1, 2); }
TEST(Sweep, Moe) { sweep("sweep_moe", 1, 4); }

// Heads are cut, latents are not: tensor parallelism with and without cut rows, beside all else.
TEST(Sweep, Mla) {
  const Overrides up{"model.recompute_granularity=selective", "model.recompute_modules=[layernorm,mla_up_proj]"};
  const Overrides no_q_latent{"model.mla.q_lora_rank=0"}, tp_overlap{"comm_overlap.tp_comm_overlap=true"};
  const Overrides packed{"dataset.reset_attention_mask=true", "dataset.reset_position_ids=true"};
  const Overrides dropout{"model.hidden_dropout=0.2", "model.attention_dropout=0.1"};
  struct Group {
    Overrides model;
    std::vector<std::pair<int, Overrides>> layouts;
  };
  const std::vector<Group> groups{{{},
                                   {{2, tp2},
                                    {2, tp2 + sp},
                                    {4, tp4},
                                    {4, tp4 + sp + tp_overlap},
                                    {2, pp2 + zero_bubble},
                                    {2, pp2 + vp2 + full},
                                    {4, pp4 + selective},
                                    {2, zero1 + buckets + overlap},
                                    {4, zero2},
                                    {4, zero3 + full},
                                    {4, tp2 + sp + up},
                                    {8, tp2 + sp + pp2 + zero1 + buckets},
                                    {8, tp2 + pp2 + zero3 + full},
                                    {8, tp2 + zero1 + overlap},
                                    {4, tp2 + sp + pp2 + zbv + offload},
                                    {4, tp2 + sp + ep4 + etp1},
                                    {8, tp2 + pp2 + ep2 + all_to_all}}},
                                  {no_q_latent, {{2, tp2}, {4, tp4 + sp + selective}, {4, tp2 + sp + zero3}}},
                                  {packed + dropout, {{2, tp2 + sp}, {4, tp2 + pp2}}}};
  SweepLimits limits;
  if (can_count_allocations()) {
    limits.start_counting = start_counting_allocations;
    limits.stop_counting = stop_counting_allocations;
  }
  for (const auto& [model, layouts] : groups) {
    SweepResult alone;
    play_threads({.config = "sweep_mla", .overrides = model}, sweep_steps, alone);
    for (const auto& [ranks, layout] : layouts) {
      expect_like_one_rank({"sweep_mla", ranks, model + layout}, alone, limits);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Layers that predict further ahead, at two depths, and their share of the table of words and of the head.
TEST(Sweep, Mtp) {
  const Overrides tied{"model.untie_embeddings_and_output_weights=false"}, dense{"model.mtp_num_layers=1"};
  const Overrides packed{"dataset.reset_attention_mask=true", "dataset.reset_position_ids=true"};
  const Overrides dropout{"model.hidden_dropout=0.2", "model.attention_dropout=0.1"};
  const Overrides one_again{"model.recompute_granularity=full", "model.recompute_method=block",
                            "model.recompute_num_layers=1"};
  const Overrides all_again{"model.recompute_granularity=full", "model.recompute_method=block"};
  const Overrides gather{"comm_overlap.overlap_param_gather=true"};
  const Overrides together{"comm_overlap.overlap_moe_expert_parallel_comm=true"};
  const Overrides by_string{"dist.pipeline_model_parallel_layout=Ettt|tm*2L"};
  struct Group {
    std::string config;
    Overrides model;
    std::vector<std::pair<int, Overrides>> layouts;
  };
  const std::vector<Group> groups{
      {"sweep_mtp",
       {},
       {{2, tp2},
        {2, tp2 + sp},
        {4, tp4 + sp + selective},
        {2, pp2},
        {2, pp2 + by_string},
        {2, pp2 + zero_bubble},
        {2, pp2 + zbv + full},
        {2, pp2 + vp2 + all_again},
        {4, pp4 + one_again},
        {2, buckets + overlap},
        {2, zero1 + buckets + overlap + gather},
        {4, zero2},
        {4, zero3 + full},
        {4, pp2 + zero2 + overlap},
        {4, pp2 + zero3},
        {8, tp2 + sp + pp2 + zero1 + buckets},
        {8, tp2 + pp2 + zero3 + overlap},
        {4, tp2 + sp + pp2 + zbv + offload},
        {2, ep2},
        {4, tp2 + sp + ep4 + etp1},
        {4, pp2 + ep2 + zero_bubble + all_to_all},
        {8, tp2 + pp2 + ep2 + zero3 + all_to_all},
        {2, ep2 + together},
        {4, pp2 + ep2 + all_to_all + zero1 + together},
        {2, cp2 + heads_travel},
        {4, cp2 + heads_travel + tp2 + sp + full}}},
      {"sweep_mtp",
       tied,
       {{2, tp2 + sp}, {2, pp2}, {2, pp2 + zbv}, {4, pp2 + vp2 + zero1}, {4, zero3}, {8, tp2 + pp2 + zero3}}},
      {"sweep_mtp", packed + dropout, {{2, tp2 + sp}, {4, tp2 + pp2}}},
      {"sweep_llama",
       dense,
       {{2, tp2}, {4, pp4}, {4, tp2 + sp + zero2}, {2, cp2}, {4, cp2 + pp2 + zero_bubble + zero1}}},
      {"sweep_llama", dense + packed, {{2, cp2}, {4, cp2 + tp2 + sp}}}};
  SweepLimits limits;
  if (can_count_allocations()) {
    limits.start_counting = start_counting_allocations;
    limits.stop_counting = stop_counting_allocations;
  }
  for (const auto& [config, model, layouts] : groups) {
    SweepResult alone;
    play_threads({.config = config, .overrides = model}, sweep_steps, alone);
    EXPECT_FALSE(alone.loss_ahead.empty());
    for (const auto& [ranks, layout] : layouts) {
      expect_like_one_rank({config, ranks, model + layout}, alone, limits);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Sweep, Experts) {
  SweepLimits limits;
  if (can_count_allocations()) {
    limits.start_counting = start_counting_allocations;
    limits.stop_counting = stop_counting_allocations;
  }
  const std::vector<SweepCase> all = expert_layouts();
  EXPECT_GE(all.size(), 50u);
  for (const SweepCase& one : all) expect_like_one_rank(one, one_rank(one.config), limits);
}

SweepCase with_room(const Overrides& layout, const std::string& factor) {
  return {"sweep_experts", 4, layout + Overrides{"model.moe.expert_rank_capacity_factor=" + factor}};
}

// A run with too little room ends with a factor that would have held the rows at hand. Others may be more, so whoever
// follows the message comes to one that holds all, and each is larger than the one before.
void expect_to_name_enough_room(const Overrides& layout) {
  const bool exchanges = std::ranges::find(layout, all_to_all.front()) != layout.end();
  std::string factor = "1";
  int rounds = 0;
  for (SweepResult result; rounds < 8; ++rounds) {
    std::string message;
    try {
      play_threads(with_room(layout, factor), sweep_steps, result);
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

// Experts with room for a multiple of an even share: enough of it changes no bit, and too little ends the run.
TEST(Sweep, RoomForRowsOfExperts) {
  const std::vector<std::pair<Overrides, const char*>> layouts{{ep4, "3.2"},
                                                               {ep4 + all_to_all, "3.2"},
                                                               {tp2 + sp + ep4 + etp1 + full, "3.2"},
                                                               {tp2 + ep2, "1.6"},
                                                               {tp2 + ep2 + all_to_all, "1.6"}};
  for (const auto& [layout, enough] : layouts) {
    const SweepCase all{"sweep_experts", 4, layout};
    expect_same_bits(all, with_room(layout, enough));
    SweepResult whole, some;
    play_threads(all, 1, whole);
    play_threads(with_room(layout, enough), 1, some);
    EXPECT_LT(some.most_bytes, whole.most_bytes);
    expect_to_name_enough_room(layout);
  }
}

TEST(Sweep, MoeBias) { sweep("sweep_moe_bias", 2, 4); }

// Choices are made where a row is, and counted over all ranks, whoever has the expert.
TEST(Sweep, BiasOfExpertsOnOtherRanks) {
  const std::vector<std::pair<int, Overrides>> layouts{{2, ep2},
                                                       {2, ep2 + all_to_all + full},
                                                       {2, tp2 + ep2 + etp1},
                                                       {2, tp2 + sp + ep2 + etp1 + all_to_all},
                                                       {4, ep4 + zero3},
                                                       {4, ep2 + etp2 + all_to_all + zero1},
                                                       {4, tp2 + sp + ep4 + etp1 + selective},
                                                       {4, pp2 + ep2 + all_to_all + zero_bubble},
                                                       {4, pp2 + vp2 + ep2 + offload},
                                                       {8, tp2 + sp + pp2 + ep4 + etp1 + all_to_all + zbv},
                                                       {8, tp2 + ep4 + zero2 + overlap}};
  for (const auto& [ranks, layout] : layouts)
    expect_like_one_rank({"sweep_expert_bias", ranks, layout}, one_rank("sweep_expert_bias"));
}

// What the layouts with experts on other ranks differ in, each way at least twice.
TEST(Sweep, ExpertLayoutsCoverEveryAxis) {
  std::map<std::string, std::map<std::int64_t, int>> seen;
  for (const SweepCase& one : expert_layouts()) {
    const tera::Setup setup = sweep_setup(one);
    const ParallelShape& parallel = setup.parallel;
    const MeshSizes& mesh = parallel.mesh;
    ++seen["tp"][mesh.tp];
    ++seen["pp"][mesh.pp];
    ++seen["ep"][mesh.ep];
    ++seen["etp"][mesh.etp == 0 ? mesh.tp : mesh.etp];
    ++seen["dp"][parallel.dp];
    ++seen["sequence parallel"][parallel.sequence_parallel ? 1 : 0];
    ++seen["sharding"][static_cast<std::int64_t>(parallel.sharding)];
    ++seen["schedule"][static_cast<std::int64_t>(parallel.schedule)];
    ++seen["dispatcher"][static_cast<std::int64_t>(setup.model.moe->dispatcher)];
  }
  const std::map<std::string, std::size_t> wanted{{"tp", 3},       {"pp", 3},       {"ep", 4},
                                                  {"etp", 3},      {"dp", 4},       {"sequence parallel", 2},
                                                  {"sharding", 4}, {"schedule", 3}, {"dispatcher", 2}};
  for (const auto& [axis, ways] : wanted) {
    EXPECT_GE(seen[axis].size(), ways) << axis;
    for (const auto& [value, layouts] : seen[axis]) EXPECT_GE(layouts, 2) << axis << " " << value;
  }
}

std::map<std::string, std::vector<float>> of_kind(const Assembled& all, const std::string& kind) {
  std::map<std::string, std::vector<float>> some;
  for (const auto& [name, values] : all.tensors())
    if (name.find(kind) != std::string::npos) some[name] = values;
  return some;
}

// A step moves each element of a bias by the rate or not at all, away from experts that were chosen more than the mean;
// and shares are those of the last step.
TEST(Sweep, BiasAndSharesFollowTheChoices) {
  SweepResult two, three;
  play_threads({.config = "sweep_moe_bias"}, 2, two);
  play_threads({.config = "sweep_moe_bias"}, 3, three);
  constexpr std::size_t experts = 6, layers = 3;
  constexpr float rate = 0.02f;
  ASSERT_EQ(three.choices.size(), layers * experts);
  const auto before = of_kind(two.counted, "e_score_correction_bias"),
             after = of_kind(three.counted, "e_score_correction_bias"), shares = of_kind(three.counted, "shares");
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

// F of a recomputed layer is played twice; nothing is counted twice. Nor does it matter when B comes.
TEST(Sweep, ExpertsCountOnce) {
  SweepResult alone;
  play_threads({.config = "sweep_moe_bias"}, 3, alone);
  for (const auto& [ranks, layout] :
       std::vector<std::pair<int, Overrides>>{{1, full}, {1, selective}, {2, pp2 + zero_bubble + full}}) {
    SweepResult other;
    play_threads({"sweep_moe_bias", ranks, layout}, 3, other);
    EXPECT_EQ(other.choices, alone.choices);
    EXPECT_TRUE(other.counted.tensors() == alone.counted.tensors());
  }
  // Frozen, a bias stays; the shares are counted all the same.
  SweepResult frozen;
  play_threads({"sweep_moe_bias", 1, {"model.freeze=['*.mlp.gate.*','*.mlp.gate']"}}, 3, frozen);
  for (const auto& [name, bias] : of_kind(frozen.counted, "e_score_correction_bias"))
    EXPECT_EQ(bias, std::vector<float>(6, 0.0f)) << name;
  EXPECT_NE(of_kind(frozen.counted, "shares").begin()->second, std::vector<float>(6, 0.0f));
}

// Where the tokens among which some are dropped are those of one microbatch, these are the same in every layout.
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
  SweepResult whole;
  play_threads({.config = "sweep_experts"}, sweep_steps, whole);
  for (const Overrides& drop : {by_weight, by_position}) {
    SweepResult alone;
    play_threads({.config = "sweep_experts", .overrides = drop}, sweep_steps, alone);
    EXPECT_GT(std::abs(alone.loss[1] - whole.loss[1]), 1e-5) << "nothing is dropped";
    for (const auto& [ranks, layout] : layouts) expect_like_one_rank({"sweep_experts", ranks, drop + layout}, alone);
  }
}

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
    for (const auto& group : groups)
      for (const auto& variant : group.variants)
        expect_same_bits({config, group.ranks, group.base}, {config, group.ranks, group.base + variant});
}

// Nor what is computed while rows are on their way to experts: the shared expert, or another microbatch.
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
  for (const auto& [ranks, layout] : layouts)
    for (const Overrides& how : {shared_overlap, together, shared_overlap + together})
      expect_same_bits({"sweep_experts", ranks, layout}, {"sweep_experts", ranks, layout + how});
}

// Nor does it matter where activations wait for their backward.
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

// Nor where rows of experts do, though as many travel to the host as there is room for.
TEST(Sweep, OffloadOfExpertsChangesNoBit) {
  const Overrides room{"model.moe.expert_rank_capacity_factor=3.2"}, dropped{"model.moe.expert_capacity_factor=1.0"};
  const std::vector<SweepCase> cases{{"sweep_experts", 1, {}},
                                     {"sweep_experts", 2, ep2},
                                     {"sweep_experts", 2, tp2 + sp + ep2 + etp1 + all_to_all},
                                     {"sweep_experts", 4, ep4 + all_to_all + room},
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

// Nor what an earlier step left in the memory of gradients, which nobody clears as a whole.
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

// What a model or a run can have besides, where cutting it could go wrong: each against one rank of the same.
TEST(Sweep, UnusualModelsAndLayouts) {
  const Overrides one_group{"model.num_query_groups=1"}, qkv_bias{"model.add_qkv_bias=true"};
  const Overrides qk_norm{"model.qk_layernorm=true"};
  const Overrides sgd{"optimizer.optimizer=sgd", "optimizer.sgd_momentum=0.9", "optimizer.lr=0.01"};
  const Overrides bf16_moments{"optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16",
                               "optimizer.adam_beta2=0.95"};
  const Overrides frozen{"model.freeze=['*.mlp.*','*embed*']"}, frozen_gpt{"model.freeze=['*.attn.*']"};
  const Overrides dropout{"model.hidden_dropout=0.2", "model.attention_dropout=0.1"};
  const Overrides padded{"model.pad_vocab_in_softmax=true", "model.make_vocab_size_divisible_by=64",
                         "model.vocab_size=100"};
  const Overrides uneven{"dist.pipeline_model_parallel_layout=Et|t*2|t|L"};
  const Overrides few{"train.global_batch_size=8", "train.micro_batch_size=4"};
  const Overrides window{"model.window_size=5"};
  struct Extra {
    std::string config;
    Overrides model;
    int ranks;
    Overrides layout;
  };
  const std::vector<Extra> extras{
      {"sweep_llama", qkv_bias, 4, tp4},
      {"sweep_llama", qkv_bias, 4, tp4 + sp},
      {"sweep_llama", qkv_bias + one_group, 8, tp4 + sp + zero3},
      {"sweep_gpt", one_group, 4, tp4 + sp},
      {"sweep_gpt", one_group, 2, tp2},
      {"sweep_llama", qk_norm, 4, tp4},
      {"sweep_llama", qk_norm, 4, tp2 + sp + pp2},
      {"sweep_llama", sgd, 4, zero1 + buckets},
      {"sweep_llama", sgd, 4, pp2 + zero3},
      {"sweep_llama", bf16_moments, 4, zero1 + buckets},
      {"sweep_gpt", bf16_moments, 4, zero2 + overlap},
      {"sweep_llama", bf16_moments, 8, tp2 + sp + pp2 + zero3},
      {"sweep_llama", frozen, 4, pp2 + zero1},
      {"sweep_llama", frozen, 4, tp2 + sp + zero3},
      {"sweep_gpt", frozen_gpt, 4, pp2 + zero2},
      {"sweep_gpt", dropout, 4, tp2 + sp + pp2},
      {"sweep_gpt", dropout, 4, zero3 + full},
      {"sweep_llama", dropout, 2, pp2 + zbv},
      {"sweep_gpt", padded, 2, tp2},
      {"sweep_llama", {}, 4, pp4 + uneven},
      {"sweep_gpt", {}, 4, pp4 + uneven + zero_bubble},
      {"sweep_gpt", few, 4, pp4},
      {"sweep_llama", few, 4, pp2 + vp2},
      {"sweep_llama", window, 4, tp4 + sp},
  };
  for (const auto& extra : extras) {
    SweepResult alone;
    play_threads({.config = extra.config, .overrides = extra.model}, sweep_steps, alone);
    expect_like_one_rank({extra.config, extra.ranks, extra.model + extra.layout}, alone);
  }
}

// Steps of 4, 8 and 12 sequences before those of 16, in every schedule.
TEST(Sweep, GrowingBatches) {
  const Overrides growing{"train.rampup_batch_size=[4,4,12]", "train.train_iters=0", "train.train_samples=100",
                          "train.micro_batch_size=1", "train.global_batch_size=16"};
  const Overrides groups_of_3{"dist.microbatch_group_size_per_vp_stage=3"};
  SweepLimits limits;
  if (can_count_allocations()) {
    limits.start_counting = start_counting_allocations;
    limits.stop_counting = stop_counting_allocations;
  }
  SweepResult alone;
  play_threads({.overrides = growing}, sweep_steps, alone);
  const std::vector<std::pair<int, Overrides>> layouts{{2, pp2},
                                                       {4, pp4},
                                                       {4, pp4 + zero_bubble},
                                                       {2, pp2 + zbv},
                                                       {4, pp2 + vp2},
                                                       {2, pp2 + vp2 + groups_of_3},
                                                       {4, tp2 + sp + pp2 + full},
                                                       {4, buckets + overlap},
                                                       {4, pp4 + offload},
                                                       {8, pp2 + zero3}};
  for (const auto& [ranks, layout] : layouts)
    expect_like_one_rank({.ranks = ranks, .overrides = growing + layout}, alone, limits);
}

// Attention inside documents, whose bounds every stage has to know: mock data is full of ends of documents.
TEST(Sweep, PackedDocuments) {
  const Overrides packed{"dataset.reset_attention_mask=true", "dataset.reset_position_ids=true",
                         "dataset.eod_mask_loss=true"};
  const Overrides dropout{"model.hidden_dropout=0.2", "model.attention_dropout=0.1"};
  SweepLimits limits;
  if (can_count_allocations()) {
    limits.start_counting = start_counting_allocations;
    limits.stop_counting = stop_counting_allocations;
  }
  for (const Overrides& model : {packed, packed + dropout}) {
    SweepResult alone, whole;
    play_threads({.overrides = model}, sweep_steps, alone);
    play_threads({}, sweep_steps, whole);
    EXPECT_GT(std::abs(alone.loss[1] - whole.loss[1]), 1e-4) << "documents make no difference";
    const std::vector<std::pair<int, Overrides>> layouts{{2, tp2},
                                                         {2, tp2 + sp},
                                                         {4, tp4 + sp + full},
                                                         {2, pp2},
                                                         {4, pp4 + zero_bubble},
                                                         {2, pp2 + zbv},
                                                         {2, pp2 + vp2 + offload},
                                                         {4, zero1 + buckets + overlap},
                                                         {8, tp2 + sp + pp2 + zero3}};
    for (const auto& [ranks, layout] : layouts)
      expect_like_one_rank({.ranks = ranks, .overrides = model + layout}, alone, limits);
  }
}

// A few of everything, under ThreadSanitizer in every check of a change.
TEST(SweepFew, Llama) { sweep("sweep_llama", 3, 11); }
TEST(SweepFew, Gpt) { sweep("sweep_gpt", 8, 11); }
TEST(SweepFew, Experts) {
  const std::vector<SweepCase> all = expert_layouts();
  for (std::size_t i = 3; i < all.size(); i += 11) expect_like_one_rank(all[i], one_rank(all[i].config));
}

TEST(SweepSlow, AllLayoutsOfLlama) { sweep("sweep_llama", 0, 1); }
TEST(SweepSlow, AllLayoutsOfGpt) { sweep("sweep_gpt", 0, 1); }
TEST(SweepSlow, AllLayoutsOfMoe) { sweep("sweep_moe", 0, 1); }
TEST(SweepSlow, AllLayoutsOfMoeBias) { sweep("sweep_moe_bias", 0, 1); }
TEST(SweepSlow, AllLayoutsOfMla) { sweep("sweep_mla", 0, 1); }

}  // namespace
}  // namespace tera::test
