// One model, many layouts: each trains as one rank does. These full lists are for make slow; every change is tested
// with the layouts that sweep_draw_test.cpp draws.

#include <gtest/gtest.h>

#include "tests/parallel/sweep_expect.h"
#include "tests/support/count_allocations.h"

namespace tera::test {
namespace {

const SweepResult& one_rank(const std::string& config) {
  static std::map<std::string, SweepResult> known;
  const auto [found, fresh] = known.try_emplace(config);
  if (fresh) run_on_threads({.config = config}, sweep_steps, found->second);
  return found->second;
}

void sweep(const std::string& config) {
  const std::vector<SweepCase> all = sweep_layouts();
  SweepLimits limits;
  if (can_count_allocations()) {
    limits.start_counting = start_counting_allocations;
    limits.stop_counting = stop_counting_allocations;
  }
  for (SweepCase one : all) {
    one.config = config;
    expect_like_one_rank(one, one_rank(config), limits);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GE(all.size(), 100u);
}

TEST(SweepSlow, Llama) { sweep("sweep_llama"); }
TEST(SweepSlow, Gpt) { sweep("sweep_gpt"); }
TEST(SweepSlow, Moe) { sweep("sweep_moe"); }
TEST(SweepSlow, MoeBias) { sweep("sweep_moe_bias"); }
TEST(SweepSlow, AllLayoutsOfMla) { sweep("sweep_mla"); }

// Tensor parallelism splits the heads of MLA but not its latents: layouts with and without sequence parallelism, beside
// all else.
TEST(SweepSlow, Mla) {
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
    run_on_threads({.config = "sweep_mla", .overrides = model}, sweep_steps, alone);
    for (const auto& [ranks, layout] : layouts) {
      expect_like_one_rank({"sweep_mla", ranks, model + layout}, alone, limits);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// MTP layers of two depths, with their gradients of the embedding table and of the head.
TEST(SweepSlow, Mtp) {
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
        {2, cp2 + ulysses},
        {4, cp2 + ulysses + tp2 + sp + full}}},
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
    run_on_threads({.config = config, .overrides = model}, sweep_steps, alone);
    EXPECT_FALSE(alone.mtp_loss.empty());
    for (const auto& [ranks, layout] : layouts) {
      expect_like_one_rank({config, ranks, model + layout}, alone, limits);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(SweepSlow, Experts) {
  SweepLimits limits;
  if (can_count_allocations()) {
    limits.start_counting = start_counting_allocations;
    limits.stop_counting = stop_counting_allocations;
  }
  const std::vector<SweepCase> all = expert_layouts();
  EXPECT_GE(all.size(), 50u);
  for (const SweepCase& one : all) expect_like_one_rank(one, one_rank(one.config), limits);
}

// A row's experts are chosen on the rank of the row, and counted over all ranks, whichever has the expert.
TEST(SweepSlow, BiasOfExpertsOnOtherRanks) {
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

// Every value of every axis of expert parallelism comes at least twice.
TEST(SweepSlow, ExpertLayoutsCoverEveryAxis) {
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

// Other features of a model or a run that sharding could break: each layout against one rank of the same model.
TEST(SweepSlow, UnusualModelsAndLayouts) {
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
    run_on_threads({.config = extra.config, .overrides = extra.model}, sweep_steps, alone);
    expect_like_one_rank({extra.config, extra.ranks, extra.model + extra.layout}, alone);
  }
}

// Steps of 4, 8 and 12 sequences before those of 16, in every schedule.
TEST(SweepSlow, GrowingBatches) {
  const Overrides growing{"train.rampup_batch_size=[4,4,12]", "train.train_iters=0", "train.train_samples=100",
                          "train.micro_batch_size=1", "train.global_batch_size=16"};
  const Overrides groups_of_3{"dist.microbatch_group_size_per_vp_stage=3"};
  SweepLimits limits;
  if (can_count_allocations()) {
    limits.start_counting = start_counting_allocations;
    limits.stop_counting = stop_counting_allocations;
  }
  SweepResult alone;
  run_on_threads({.overrides = growing}, sweep_steps, alone);
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
TEST(SweepSlow, PackedDocuments) {
  const Overrides packed{"dataset.reset_attention_mask=true", "dataset.reset_position_ids=true",
                         "dataset.eod_mask_loss=true"};
  const Overrides dropout{"model.hidden_dropout=0.2", "model.attention_dropout=0.1"};
  SweepLimits limits;
  if (can_count_allocations()) {
    limits.start_counting = start_counting_allocations;
    limits.stop_counting = stop_counting_allocations;
  }
  for (const Overrides& model : {packed, packed + dropout}) {
    SweepResult alone, without_documents;
    run_on_threads({.overrides = model}, sweep_steps, alone);
    run_on_threads({}, sweep_steps, without_documents);
    EXPECT_GT(std::abs(alone.loss[1] - without_documents.loss[1]), 1e-4) << "documents make no difference";
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

}  // namespace
}  // namespace tera::test
