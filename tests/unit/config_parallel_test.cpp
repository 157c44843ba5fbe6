// How a run is split over ranks: what the keys resolve to, and every rule they can break.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tera/base/error.h"
#include "tera/config/family.h"
#include "tera/setup/describe.h"
#include "tera/setup/resolve.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using Kind = PipelineScheduleKind;

// 12 query heads, 4 key heads, 384 feed-forward channels: tp may be 1, 2, 4 or 12.
RunConfig small() {
  RunConfig config;
  config.model.arch = &family_named("llama");
  family_named("llama").defaults(config.model);
  config.model.num_layers = 8;
  config.model.hidden_size = 96;
  config.model.ffn_hidden_size = 384;
  config.model.num_attention_heads = 12;
  config.model.num_query_groups = 4;
  config.train.train_iters = 100;
  config.train.seq_length = 32;
  config.optimizer.lr = 1e-3;
  return config;
}

RunConfig with_sizes(std::int64_t tp, std::int64_t pp) {
  RunConfig config = small();
  config.dist.tensor_model_parallel_size = tp;
  config.dist.pipeline_model_parallel_size = pp;
  return config;
}

ParallelShape parallel_of(const RunConfig& config, int world) {
  return resolve(config, Purpose::train, nullptr, world).parallel;
}

// The message names the key and holds the words, and is one line.
void expect_broken(const RunConfig& config, int world, std::string_view key, std::string_view words) {
  const std::string message = message_of<UserError>([&] { resolve(config, Purpose::train, nullptr, world); });
  EXPECT_TRUE(contains(message, key) && contains(message, words)) << message;
  EXPECT_FALSE(contains(message, "\n")) << "one mistake, one line: " << message;
}

TEST(ResolveParallel, OneRankNeedsNothing) {
  const ParallelShape shape = parallel_of(small(), 1);
  EXPECT_EQ(shape, ParallelShape{});
  EXPECT_EQ(shape.dp, 1);
  EXPECT_EQ(shape.schedule, Kind::one_f_one_b);
}

TEST(ResolveParallel, ReplicasAreWhatIsLeft) {
  RunConfig config = with_sizes(2, 4);
  config.dist.order = MeshOrder::tp_cp_ep_pp_dp;
  config.dist.timeout_seconds = 2.5;
  const ParallelShape shape = parallel_of(config, 24);
  EXPECT_EQ(shape.mesh, (MeshSizes{.world = 24, .tp = 2, .pp = 4, .order = MeshOrder::tp_cp_ep_pp_dp}));
  EXPECT_EQ(shape.dp, 3);
  EXPECT_EQ(shape.timeout_seconds, 2.5);
  EXPECT_EQ(smallest_world(config), 8);
  EXPECT_EQ(parallel_of(config, smallest_world(config)).dp, 1);
}

TEST(ResolveParallel, BatchesAreSharedByReplicas) {
  RunConfig config = small();
  config.train.micro_batch_size = 2;
  EXPECT_EQ(resolve(config, Purpose::train, nullptr, 4).batch.global_batch, 8);
  EXPECT_EQ(resolve(config, Purpose::train, nullptr, 4).batch.num_microbatches, 1);
  config.train.global_batch_size = 48;
  EXPECT_EQ(resolve(config).batch.num_microbatches, 24);
  EXPECT_EQ(resolve(config, Purpose::train, nullptr, 4).batch.num_microbatches, 6);
  config.dist.tensor_model_parallel_size = 2;
  EXPECT_EQ(resolve(config, Purpose::train, nullptr, 4).batch.num_microbatches, 12);
  config.dist.tensor_model_parallel_size = 1;
  config.train.loss_reduction = LossReduction::microbatch;
  EXPECT_EQ(resolve(config, Purpose::train, nullptr, 4).batch.num_microbatches, 6);
  config.train.global_batch_size = 20;
  expect_broken(config, 4, "train.global_batch_size=20",
                "must be a multiple of micro_batch_size=2 times the 4 replicas, which is 8; nearest: 16 or 24");
  config.train.global_batch_size = 4;
  expect_broken(config, 4, "train.global_batch_size=4", "which is 8; nearest: 8");
}

TEST(ResolveParallel, VocabulariesArePaddedForEachRank) {
  RunConfig config = with_sizes(4, 1);
  config.model.vocab_size = 50257;
  EXPECT_EQ(resolve(config, Purpose::train, nullptr, 4).model.padded_vocab, 50688);  // 99 x 512
  config.model.make_vocab_size_divisible_by = 1;
  EXPECT_EQ(resolve(config, Purpose::train, nullptr, 4).model.padded_vocab, 50260);
}

TEST(ResolveParallel, SchedulesFollowFromChunks) {
  RunConfig config = with_sizes(1, 4);
  EXPECT_EQ(parallel_of(config, 4).schedule, Kind::one_f_one_b);
  config.dist.virtual_pipeline_model_parallel_size = 1;
  EXPECT_EQ(parallel_of(config, 4).schedule, Kind::one_f_one_b);
  config.dist.virtual_pipeline_model_parallel_size = 2;
  EXPECT_EQ(parallel_of(config, 4).schedule, Kind::interleaved);
  EXPECT_EQ(parallel_of(config, 4).chunks, 2);
  EXPECT_EQ(parallel_of(config, 4).group_size, 4);
  config.dist.microbatch_group_size_per_vp_stage = 6;
  EXPECT_EQ(parallel_of(config, 4).group_size, 6);
  config = with_sizes(1, 4);
  config.dist.pipeline_schedule = Kind::zero_bubble_v;
  EXPECT_EQ(parallel_of(config, 4).chunks, 2);
  config.dist.pipeline_schedule = Kind::zero_bubble;
  EXPECT_EQ(parallel_of(config, 4).schedule, Kind::zero_bubble);
  EXPECT_EQ(parallel_of(config, 4).chunks, 1);
}

TEST(ResolveParallel, RequestsOfStages) {
  RunConfig config = with_sizes(1, 4);
  EXPECT_EQ(parallel_of(config, 4).stages, StageRequest{});
  config.dist.num_layers_in_first_pipeline_stage = 1;
  config.dist.num_layers_in_last_pipeline_stage = 3;
  config.dist.account_for_embedding_in_pipeline_split = true;
  config.dist.account_for_loss_in_pipeline_split = true;
  config.dist.pipeline_model_parallel_layout = "Et|L";
  EXPECT_EQ(parallel_of(config, 4).stages,
            (StageRequest{
                .first_layers = 1, .last_layers = 3, .count_embedding = true, .count_loss = true, .layout = "Et|L"}));
}

TEST(ResolveParallel, Sharding) {
  RunConfig config = small();
  EXPECT_EQ(parallel_of(config, 2).sharding, Sharding::no_shard);
  config.optimizer.use_distributed_optimizer = true;
  EXPECT_EQ(parallel_of(config, 2).sharding, Sharding::optim);
  config.ddp.data_parallel_sharding_strategy = Sharding::optim_grads_params;
  EXPECT_EQ(parallel_of(config, 2).sharding, Sharding::optim_grads_params);
  config.optimizer.use_distributed_optimizer = false;
  config.ddp.data_parallel_sharding_strategy = Sharding::optim_grads;
  EXPECT_EQ(parallel_of(config, 2).sharding, Sharding::optim_grads);
}

TEST(ResolveParallel, BucketsGrowWithReplicas) {
  RunConfig config = small();
  EXPECT_EQ(parallel_of(config, 1).bucket_size, 40'000'000);
  EXPECT_EQ(parallel_of(config, 64).bucket_size, 64'000'000);
  config.ddp.bucket_size = 1000;
  EXPECT_EQ(parallel_of(config, 64).bucket_size, 1000);
}

TEST(ResolveParallel, Overlap) {
  RunConfig config = small();
  EXPECT_TRUE(parallel_of(config, 2).overlap_p2p_comm);
  config.comm_overlap = {.overlap_grad_reduce = true, .tp_comm_overlap = true, .overlap_p2p_comm = false};
  const ParallelShape shape = parallel_of(config, 2);
  EXPECT_TRUE(shape.overlap_grad_reduce && shape.tp_comm_overlap);
  EXPECT_FALSE(shape.overlap_param_gather || shape.overlap_p2p_comm);
  config.comm_overlap.overlap_param_gather = true;
  expect_broken(config, 2, "comm_overlap.overlap_param_gather=true", "needs optimizer.use_distributed_optimizer=true");
  config.comm_overlap.overlap_grad_reduce = false;
  expect_broken(config, 2, "comm_overlap.overlap_param_gather=true",
                "needs overlap_grad_reduce=true and optimizer.use_distributed_optimizer=true");
  config.ddp.data_parallel_sharding_strategy = Sharding::optim;
  expect_broken(config, 2, "comm_overlap.overlap_param_gather=true", "needs overlap_grad_reduce=true");
  config.comm_overlap.overlap_grad_reduce = true;
  EXPECT_TRUE(parallel_of(config, 2).overlap_param_gather);
}

TEST(ResolveParallel, SequenceParallelNeedsSeveralRanks) {
  RunConfig config = with_sizes(2, 1);
  config.dist.sequence_parallel = true;
  EXPECT_TRUE(parallel_of(config, 2).sequence_parallel);
  config.dist.tensor_model_parallel_size = 1;
  EXPECT_FALSE(parallel_of(config, 2).sequence_parallel);
  config.train.seq_length = 33;
  EXPECT_NO_THROW(parallel_of(config, 2));
  config.dist.tensor_model_parallel_size = 4;
  expect_broken(config, 4, "dist.sequence_parallel=true",
                "tensor_model_parallel_size, which is 4, must divide train.micro_batch_size x seq_length, which is 33; "
                "nearest: train.seq_length 32 or 36");
  config.train.micro_batch_size = 2;
  expect_broken(config, 4, "dist.sequence_parallel=true", "which is 66; nearest: train.seq_length 32 or 34");
  config.dist.sequence_parallel = false;
  EXPECT_NO_THROW(parallel_of(config, 4));
}

TEST(ParallelRules, SequencesAreCutEvenly) {
  RunConfig config = with_sizes(1, 1);
  config.dist.context_parallel_size = 4;
  config.train.seq_length = 32;
  const ParallelShape shape = parallel_of(config, 8);
  EXPECT_EQ(shape.mesh.cp, 4);
  EXPECT_EQ(shape.dp, 2);
  EXPECT_EQ(shape.replicas(), 8);
  EXPECT_EQ(smallest_world(config), 4);
  expect_broken(config, 6, "dist.context_parallel_size=4", "must divide the number of ranks, which is 6");
  config.train.seq_length = 36;
  expect_broken(config, 4, "train.seq_length=36",
                "must be a multiple of twice dist.context_parallel_size, which is 4; nearest: 32 or 40");
  config.dist.tensor_model_parallel_size = 2;
  config.train.seq_length = 32;
  EXPECT_NO_THROW(parallel_of(config, 8));
  config.dist.cp_comm_type = CpCommType::a2a;
  expect_broken(config, 8, "dist.context_parallel_size=4",
                "must divide the 6 query heads and the 2 key heads of a tensor-parallel rank; nearest: 2");
  config.dist.context_parallel_size = 2;
  config.dist.sequence_parallel = true;
  EXPECT_NO_THROW(parallel_of(config, 4));
  config.dist.tensor_model_parallel_size = 4;
  config.dist.context_parallel_size = 1;
  config.train.seq_length = 36;
  EXPECT_NO_THROW(parallel_of(config, 4));
}

TEST(ResolveParallel, DegreesOfContext) {
  RunConfig config = small();
  config.dist.context_parallel_size = 4;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 20;
  config.dataset.reset_attention_mask = true;
  EXPECT_EQ(parallel_of(config, 4).context_degrees(), (std::vector<int>{4}));
  EXPECT_EQ(resolve(config, Purpose::train, nullptr, 4).batch.largest_step(), 20);
  EXPECT_TRUE(resolve(config, Purpose::train, nullptr, 4).batch.smaller_steps().empty());
  config.dist.dynamic_context_parallel = true;
  const tera::Setup setup = resolve(config, Purpose::train, nullptr, 4);
  EXPECT_TRUE(setup.parallel.dynamic_cp);
  EXPECT_EQ(setup.parallel.context_degrees(), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(setup.batch.num_microbatches, 20);
  EXPECT_EQ(setup.batch.largest_step(), 25);
  EXPECT_EQ(setup.batch.smaller_steps().size(), 24u);
  config.train.global_batch_size = 800;  // some of many numbers are listed, and the one for plain sequences
  const BatchShape large = resolve(config, Purpose::train, nullptr, 4).batch;
  EXPECT_EQ(large.largest_step(), 1000);
  const auto steps = large.smaller_steps();
  EXPECT_LE(steps.size(), 65u);
  EXPECT_TRUE(std::ranges::is_sorted(steps));
  EXPECT_TRUE(std::ranges::binary_search(steps, 800));
}

TEST(ParallelRules, DynamicContext) {
  constexpr std::string_view key = "dist.dynamic_context_parallel=true";
  RunConfig config = small();
  config.dist.context_parallel_size = 2;
  config.dist.dynamic_context_parallel = true;
  expect_broken(config, 2, key, "needs dataset.reset_attention_mask=true or dataset.kind=sft");
  config.dataset.reset_attention_mask = true;
  EXPECT_NO_THROW(parallel_of(config, 2));
  RunConfig other = config;
  other.dist.context_parallel_size = 1;
  EXPECT_FALSE(parallel_of(other, 2).dynamic_cp) << "with one rank there is one degree";
  other = config;
  other.train.loss_reduction = LossReduction::microbatch;
  expect_broken(other, 2, key, "does not go with train.loss_reduction=microbatch");
  other = config;
  other.model.arch = &family_named("mixtral");
  family_named("mixtral").defaults(other.model);
  other.model.moe.num_experts = 4;
  other.model.moe.router_topk = 2;
  other.model.moe.z_loss_coeff = 0.1;
  other.model.moe.router_enable_expert_bias = false;
  other.model.moe.router_load_balancing_type = {"none"};
  other.model.moe.aux_loss_coeff = {0};
  expect_broken(other, 2, key, "does not go with model.moe.z_loss_coeff above 0");
  other.model.moe.z_loss_coeff = 0;
  EXPECT_NO_THROW(parallel_of(other, 2));
}

TEST(ParallelRules, SizesDivideTheWorld) {
  expect_broken(with_sizes(4, 1), 6, "dist.tensor_model_parallel_size=4",
                "must divide the number of ranks, which is 6; nearest: tensor_model_parallel_size 3 or 6, or 4 or 8 "
                "ranks");
  expect_broken(with_sizes(2, 2), 6, "dist.tensor_model_parallel_size=2",
                "times pipeline_model_parallel_size=2 is 4, which must divide the number of ranks, which is 6");
  expect_broken(with_sizes(2, 1), 1, "dist.tensor_model_parallel_size=2", "or 2 ranks (--ranks N, or mpirun -n N)");
  expect_broken(with_sizes(1, 2), 1, "dist.pipeline_model_parallel_size=2", "(--ranks N, or mpirun -n N)");
  EXPECT_TRUE(contains(message_of<UserError>([] { resolve(with_sizes(2, 1), Purpose::plan, nullptr, 1); }),
                       "or 2 ranks (--world N)"))
      << "nobody starts those of a plan";
  expect_broken(small(), 0, "world=0", "must be in 1..1048576");
  expect_broken(with_sizes(0, 1), 1, "dist.tensor_model_parallel_size=0", "from 1 to 1048576");
  expect_broken(with_sizes(1, -1), 1, "dist.pipeline_model_parallel_size=-1", "from 1 to 65536");
}

TEST(ParallelRules, ModelsAreCutEvenly) {
  EXPECT_NO_THROW(parallel_of(with_sizes(4, 1), 4));
  EXPECT_NO_THROW(parallel_of(with_sizes(12, 1), 12)) << "4 key heads, each on 3 ranks";
  expect_broken(with_sizes(8, 1), 8, "dist.tensor_model_parallel_size=8",
                "must divide model.num_attention_heads, which is 12; nearest: 4 or 12");
  expect_broken(with_sizes(6, 1), 6, "dist.tensor_model_parallel_size=6",
                "must divide or be a multiple of model.num_query_groups, which is 4; nearest: 4 or 12");
  expect_broken(with_sizes(24, 1), 24, "dist.tensor_model_parallel_size=24",
                "must divide model.num_attention_heads, which is 12; nearest: 12");
  RunConfig config = with_sizes(4, 1);
  config.model.ffn_hidden_size = 390;
  expect_broken(config, 4, "dist.tensor_model_parallel_size=4",
                "must divide model.ffn_hidden_size, which is 390; nearest: 2");
  expect_broken(
      with_sizes(5, 1), 5, "dist.tensor_model_parallel_size=5",
      "must divide model.num_attention_heads, which is 12, divide model.ffn_hidden_size, which is 384, divide "
      "or be a multiple of model.num_query_groups, which is 4; nearest: 4 or 12");
}

TEST(ParallelRules, ChunksNeedAPipelineAndAScheduleForThem) {
  const auto chunked = [](std::int64_t pp, std::int64_t chunks, Kind schedule) {
    RunConfig config = with_sizes(1, pp);
    config.dist.virtual_pipeline_model_parallel_size = chunks;
    config.dist.pipeline_schedule = schedule;
    return config;
  };
  constexpr const char* chunks = "dist.virtual_pipeline_model_parallel_size";
  expect_broken(chunked(1, 2, Kind::automatic), 1, chunks, "2 chunks per rank need pipeline_model_parallel_size");
  expect_broken(chunked(1, 0, Kind::zero_bubble_v), 1, "dist.pipeline_schedule=zero_bubble_v", "of at least 2");
  expect_broken(chunked(2, 3, Kind::zero_bubble_v), 2, chunks,
                "pipeline_schedule=zero_bubble_v has 2 chunks per rank, not 3; for those there is interleaved");
  expect_broken(chunked(2, 1, Kind::zero_bubble_v), 2, chunks, "has 2 chunks per rank, not 1");
  expect_broken(chunked(2, 2, Kind::zero_bubble), 2, chunks,
                "has 1 chunk per rank, not 2; for those there is interleaved or zero_bubble_v");
  expect_broken(chunked(2, 4, Kind::one_f_one_b), 2, chunks, "pipeline_schedule=1f1b has 1 chunk");
  expect_broken(chunked(2, 0, Kind::interleaved), 2, chunks,
                "has 2 or more chunks per rank, not 1; for those there is 1f1b or zero_bubble");
  EXPECT_NO_THROW(parallel_of(chunked(1, 1, Kind::zero_bubble), 1));
  EXPECT_NO_THROW(parallel_of(chunked(2, 4, Kind::interleaved), 2));
}

TEST(ParallelRules, GroupsOfMicrobatches) {
  constexpr const char* key = "dist.microbatch_group_size_per_vp_stage";
  RunConfig config = with_sizes(1, 4);
  config.dist.microbatch_group_size_per_vp_stage = 4;
  expect_broken(config, 4, key, "needs pipeline_schedule=interleaved, which is 1f1b");
  config.dist.virtual_pipeline_model_parallel_size = 2;
  EXPECT_NO_THROW(parallel_of(config, 4));
  config.dist.microbatch_group_size_per_vp_stage = 3;
  expect_broken(config, 4, key, "at least pipeline_model_parallel_size, which is 4");
}

TEST(ParallelRules, AreReportedTogetherWithOrigins) {
  RunConfig config = with_sizes(5, 1);
  config.dist.virtual_pipeline_model_parallel_size = 2;
  config.train.global_batch_size = 3;
  config.train.micro_batch_size = 2;
  const Origins origins{{"dist.tensor_model_parallel_size", "a.yaml:7"}};
  const std::string message = message_of<UserError>([&] { resolve(config, Purpose::train, &origins, 8); });
  for (const char* words :
       {"4 problems", "dist.tensor_model_parallel_size=5 (a.yaml:7): must divide the number of ranks",
        "dist.tensor_model_parallel_size=5 (a.yaml:7): must divide model.num_attention_heads",
        "dist.virtual_pipeline_model_parallel_size=2 (default)", "train.global_batch_size=3"})
    EXPECT_TRUE(contains(message, words)) << message;
}

TEST(Recompute, MethodsAndNumbersOfLayers) {
  RunConfig config = small();
  config.model.recompute_granularity = RecomputeGranularity::full;
  EXPECT_EQ(resolve(config).model.recompute, (RecomputeShape{.full = true, .layers = 1}));
  config.model.recompute_num_layers = 3;
  EXPECT_EQ(resolve(config).model.recompute, (RecomputeShape{.full = true, .layers = 3}));
  config.model.recompute_method = RecomputeMethod::block;
  EXPECT_EQ(resolve(config).model.recompute,
            (RecomputeShape{.full = true, .method = RecomputeMethod::block, .layers = 3}));
  config.model.recompute_num_layers = 0;
  EXPECT_EQ(resolve(config).model.recompute.layers, 8);
  config.model.recompute_granularity = RecomputeGranularity::none;
  expect_broken(config, 1, "model.recompute_method=block", "needs recompute_granularity=full");
  config.model.recompute_method = RecomputeMethod::uniform;
  config.model.recompute_num_layers = 2;
  expect_broken(config, 1, "model.recompute_num_layers=2", "needs recompute_granularity=full");
}

TEST(ConfigYaml, SaysWhatFollowsForRanks) {
  RunConfig config = with_sizes(2, 2);
  config.optimizer.use_distributed_optimizer = true;
  config.dist.virtual_pipeline_model_parallel_size = 2;
  const std::string text = annotated_yaml(resolve(config, Purpose::train, nullptr, 4), {});
  for (const char* words :
       {"pipeline_schedule: auto", "becomes interleaved", "microbatch_group_size_per_vp_stage: 0", "becomes 2",
        "data_parallel_sharding_strategy: no_shard", "becomes optim\n", "becomes 40000000"})
    EXPECT_TRUE(contains(text, words)) << words << "\n" << text;
}

}  // namespace
}  // namespace tera::test
