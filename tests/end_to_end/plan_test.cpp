// `tera plan` of worlds nobody has here, through the real program.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tera/train/memory_plan.h"
#include "tests/end_to_end/program.h"

namespace tera::test {
namespace {

Outcome plan(const std::string& config, const std::string& arguments) {
  return run_program(fmt::format("plan \"{}/{}.yaml\" {}", TERA_CONFIGS, config, arguments));
}

nlohmann::json plan_json(const std::string& config, const std::string& arguments) {
  const Outcome outcome = plan(config, arguments + " --json");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  return nlohmann::json::parse(outcome.output);
}

std::int64_t item_bytes(const nlohmann::json& stage, const std::string& name) {
  for (const auto& item : stage.at("items"))
    if (item.at("name") == name) return item.at("bytes");
  return -1;
}

bool contains(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

// 126 layers with embedding and loss counted as two more are 16 x 8 chunks of one.
const char* const llama3_405b =
    "dist.device=cuda mixed_precision.precision=bf16 dist.tensor_model_parallel_size=8 dist.sequence_parallel=true "
    "dist.pipeline_model_parallel_size=16 dist.virtual_pipeline_model_parallel_size=8 "
    "dist.account_for_embedding_in_pipeline_split=true dist.account_for_loss_in_pipeline_split=true "
    "optimizer.use_distributed_optimizer=true train.seq_length=8192 train.global_batch_size=2048 --world 1024";

// The plan of what a step may choose is that of every sequence over all ranks, with more microbatches and room for what
// other degrees need.
TEST(PlanProgram, DynamicContext) {
  const std::string run =
      "dist.device=cuda mixed_precision.precision=bf16 train.seq_length=32768 train.global_batch_size=16 --world 16 "
      "dist.context_parallel_size=8 dataset.reset_attention_mask=true ";
  for (const char* how : {"p2p", "all_gather", "a2a"}) {
    const std::string fixed = run + "dist.cp_comm_type=" + how, dealt = fixed + " dist.dynamic_context_parallel=true";
    const nlohmann::json before = plan_json("models/llama3.1-8b", fixed), then = plan_json("models/llama3.1-8b", dealt);
    EXPECT_EQ(then.at("layout").at("context_degrees"), (std::vector<int>{1, 2, 4, 8}));
    EXPECT_EQ(then.at("microbatches"), 8);
    EXPECT_EQ(then.at("most_microbatches"), 10);
    const auto stage = [](const nlohmann::json& plan) { return plan.at("stages")[0]; };
    EXPECT_EQ(item_bytes(stage(then), "weights"), item_bytes(stage(before), "weights"));
    EXPECT_GE(then.at("total_bytes"), before.at("total_bytes"));
    const std::string cp = "cp";
    EXPECT_EQ(stage(then).at("groups").at(cp).at("calls").get<int>() * 8,
              stage(before).at("groups").at(cp).at("calls").get<int>() * 10);
    const Outcome table = plan("models/llama3.1-8b", dealt);
    EXPECT_TRUE(contains(table.output, "10 microbatches a step at most, each over 1 or 2 or 4 or 8 ranks"))
        << table.output;
  }
}

TEST(PlanProgram, Llama405bOn1024RanksByFormula) {
  const nlohmann::json json = plan_json("models/llama3-405b", llama3_405b);
  const std::int64_t tp = 8, dp = 8, hidden = 16384, kv = 8 * 128, ffn = 53248, vocab = 129024, batches = 256;
  const std::int64_t layer = (hidden * (2 * hidden + 2 * kv) + 3 * hidden * ffn) / tp + 2 * hidden;
  ASSERT_EQ(json.at("stages").size(), 16u);
  EXPECT_EQ(json.at("layout").at("data_parallel"), dp);
  EXPECT_EQ(json.at("microbatches"), batches);
  EXPECT_NEAR(json.at("bubble").get<double>(), 15.0 / (8 * 256 + 15), 1e-9);
  for (std::size_t i = 0; i < 16; ++i) {
    const nlohmann::json& stage = json.at("stages")[i];
    const bool first = i == 0, last = i == 15;
    const std::int64_t layers = first || last ? 7 : 8;
    const std::int64_t parameters = layers * layer + (first || last ? hidden * vocab / tp : 0) + (last ? hidden : 0);
    EXPECT_EQ(stage.at("layers"), layers) << i;
    EXPECT_EQ(stage.at("parameters"), parameters) << i;
    EXPECT_EQ(item_bytes(stage, "weights"), 2 * parameters) << i;
    EXPECT_EQ(item_bytes(stage, "gradients"), 4 * parameters) << i;
    EXPECT_EQ(item_bytes(stage, "master weights"), 4 * parameters / dp) << i;
    const std::int64_t borders = (first || last ? 15 : 16) * batches;  // y and dx of each chunk; none at the ends
    EXPECT_EQ(stage.at("groups").at("pp").at("calls"), borders) << i;
    EXPECT_EQ(stage.at("groups").at("pp").at("bytes"), static_cast<double>(borders * 8192 / tp * hidden * 2)) << i;
    EXPECT_EQ(stage.at("groups").at("dp_cp").at("bytes"), static_cast<double>(parameters * (4 + 2) / dp * (dp - 1)))
        << i;
  }
  const double tokens = 2048.0 * 8192, model = 6 * 405.8e9 * tokens;  // and attention
  EXPECT_GT(json.at("flops_per_step").get<double>(), model);
  EXPECT_LT(json.at("flops_per_step").get<double>(), 1.1 * model);
}

// A rank's copy of what it writes: bf16 weights, and of its share masters and two moments in fp32.
TEST(PlanProgram, CountsTheCopyForAsynchronousSaving) {
  const std::string arguments = "mixed_precision.precision=bf16 optimizer.use_distributed_optimizer=true --world 2";
  const std::string saving = arguments + " checkpoint.save=/nowhere checkpoint.async_save=true";
  EXPECT_EQ(plan_json("tests/tiny", arguments).at("stages")[0].at("host_bytes"), 0);
  const nlohmann::json stage = plan_json("tests/tiny", saving).at("stages")[0];
  const std::int64_t padding = 2 * (128 - 61) * 32, elements = stage.at("parameters").get<std::int64_t>() - padding;
  const std::int64_t bytes = stage.at("host_bytes"), header = 16 << 10, cut = 4 << 10;
  EXPECT_GT(bytes, (elements / 2 - cut) * (2 + 12));
  EXPECT_LT(bytes, (elements / 2 + cut) * (2 + 12) + header);
}

std::int64_t bytes_on_host(const nlohmann::json& stage, const std::string& begin) {
  std::int64_t sum = 0;
  for (const auto& item : stage.at("host_items"))
    if (item.at("name").get<std::string>().starts_with(begin)) sum += item.at("bytes").get<std::int64_t>();
  return sum;
}

// Llama 3 8B, 8 layers a stage: per token of a microbatch 2 x (qkv 6144, mlp.up 28672) bytes go to the host for B and
// 2 x (attention.out 4096, mlp.act 14336) for W; each microbatch in flight, and two buffers of one layer on the device.
TEST(PlanProgram, OffloadMovesBytesToTheHostByFormula) {
  const std::string arguments =
      "dist.device=cuda mixed_precision.precision=bf16 dist.pipeline_model_parallel_size=4 train.seq_length=4096 "
      "train.global_batch_size=16 train.micro_batch_size=1";
  const nlohmann::json kept = plan_json("models/llama3-8b", arguments);
  const nlohmann::json offloaded =
      plan_json("models/llama3-8b", arguments + " model.offload_modules=[core_attn,attn_proj,mlp_act,mlp_fc2]");
  for (std::size_t i = 0; i < 4; ++i) {
    const nlohmann::json &before = kept.at("stages")[i], &after = offloaded.at("stages")[i];
    const std::int64_t layers = 8, rows = 4096, in_flight = 4 - static_cast<std::int64_t>(i);
    const std::int64_t for_b = rows * 2 * (6144 + 28672), for_w = rows * 2 * (4096 + 14336);
    EXPECT_EQ(bytes_on_host(after, "offloaded, F to B"), in_flight * layers * for_b) << i;
    EXPECT_EQ(bytes_on_host(after, "offloaded, F to W"), in_flight * layers * for_w) << i;
    EXPECT_EQ(after.at("host_bytes"), in_flight * layers * (for_b + for_w)) << i;
    EXPECT_EQ(before.at("host_bytes"), 0) << i;
    EXPECT_EQ(item_bytes(after, "offload buffers, F to B"), 2 * for_b) << i;
    EXPECT_EQ(item_bytes(after, "offload buffers, F to W"), 2 * for_w) << i;
    EXPECT_EQ(before.at("total_bytes").get<std::int64_t>() - after.at("total_bytes").get<std::int64_t>(),
              (in_flight * layers - 2) * (for_b + for_w))
        << i;
  }
  const std::string text = plan("models/llama3-8b", arguments + " model.offload_modules=[mlp_act]").output;
  for (const char* words : {"of the host, for activations that wait there", "\n  offloaded, F to B x 4", "\n    mlp.up",
                            "offload buffers, F to B x 2"})
    EXPECT_TRUE(contains(text, words)) << words << "\n" << text;
}

TEST(PlanProgram, SaysWhoIsLargestAndWhatFits) {
  const Outcome outcome = plan("models/llama3-405b", std::string(llama3_405b) + " --memory 120");
  EXPECT_EQ(outcome.status, 0);
  const std::string& text = outcome.output;
  EXPECT_TRUE(
      contains(text, "1024 ranks: tp 8 with sequence parallelism x pp 16 (interleaved, 8 chunks a rank) x dp 8"))
      << text;
  EXPECT_TRUE(contains(text, "stage 15  layer 14")) << text;
  EXPECT_TRUE(contains(text, "does not fit 119.00 GiB (120.00 GiB less 1.00 GiB for the driver and its libraries): "))
      << text;
  EXPECT_TRUE(contains(text, "; a smaller train.seq_length, or ")) << text;
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 100);
  for (const char* words : {"largest", "\n  tp ", "\n  pp ", "\n  dp_cp ", "bubble: ", "  fits\n"})
    EXPECT_TRUE(contains(text, words)) << words << "\n" << text;

  const nlohmann::json none = plan_json("tests/tiny", "dist.pipeline_model_parallel_size=2 --memory 1e-6");
  const nlohmann::json all = plan_json("tests/tiny", "dist.pipeline_model_parallel_size=2 --memory 1");
  for (std::size_t stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(none.at("stages").at(stage).at("fits"), false);
    EXPECT_EQ(all.at("stages").at(stage).at("fits"), true);
  }
  EXPECT_FALSE(plan_json("tests/tiny", "").at("stages").at(0).contains("fits"));
}

// Each change that is named is rehearsed: with it, the plan is what was said.
TEST(PlanProgram, SaysWhatWouldNeedLess) {
  const std::string config = "dist.device=cuda mixed_precision.precision=bf16 ";
  const auto advice = [&](const std::string& arguments) {
    const std::string text = plan("models/llama3.2-1b", config + arguments + " --memory 20").output;
    const std::size_t begin = text.find("needs ", text.find("does not fit")), end = text.find(" needs less", begin);
    EXPECT_NE(end, std::string::npos) << text;
    return text.substr(begin, end - begin);
  };
  const auto total = [&](const std::string& arguments) {
    return format_bytes(plan_json("models/llama3.2-1b", config + arguments).at("total_bytes").get<std::size_t>());
  };
  const std::string rows = "train.micro_batch_size=4 train.global_batch_size=8 train.seq_length=4096 ";
  const std::string one = advice(rows);
  for (const char* way :
       {"model.recompute_granularity=full", "model.offload_modules=[attn_norm,attention,mlp_norm,mlp]"})
    EXPECT_TRUE(contains(one, fmt::format("{} ({})", way, total(rows + way)))) << way << "\n" << one;
  const std::string cp2 = "dist.context_parallel_size=2", tp2 = "dist.tensor_model_parallel_size=2";
  EXPECT_TRUE(contains(one, fmt::format("{} on 2 ranks ({} a rank)", cp2, total(rows + cp2 + " --world 2")))) << one;
  EXPECT_TRUE(contains(one, fmt::format("{} on 2 ranks ({} a rank)", tp2, total(rows + tp2 + " --world 2")))) << one;
  EXPECT_FALSE(contains(one, "a smaller")) << "weights and moments alone take more\n" << one;
  EXPECT_FALSE(contains(one, "ddp.data_parallel_sharding_strategy")) << "there is nobody to share with\n" << one;

  const std::string two = advice(rows + "model.recompute_granularity=full --world 2");
  for (const std::string way : {"optim", "optim_grads_params"}) {
    const std::string key = "ddp.data_parallel_sharding_strategy=" + way;
    EXPECT_TRUE(contains(two, fmt::format("{} ({} a rank)", key,
                                          total(rows + "model.recompute_granularity=full " + key + " --world 2"))))
        << two;
  }
  EXPECT_TRUE(contains(two, cp2 + " (")) << "by ranks that are replicas\n" << two;
  EXPECT_FALSE(contains(two, "recompute_granularity")) << two;

  const std::string far = plan("models/llama3.2-1b", config + rows + " --memory 2").output;
  EXPECT_TRUE(contains(far, "more; no one change would do")) << far;
  const std::string odd = advice("train.micro_batch_size=1 train.global_batch_size=1 train.seq_length=16386");
  EXPECT_FALSE(contains(odd, "context_parallel")) << "16386 tokens cannot be cut into four\n" << odd;
  EXPECT_FALSE(contains(odd, "micro_batch_size")) << odd;
}

// What a run keeps free of a GPU is kept free by a plan for one.
TEST(PlanProgram, KeepsTheSameFreeOfAGpu) {
  const auto fits = [](const char* device) {
    return plan_json("tests/tiny", fmt::format("dist.device={} --memory 1.0001", device)).at("stages")[0].at("fits");
  };
  EXPECT_EQ(fits("cpu"), true);
  EXPECT_EQ(fits("cuda"), false);
}

TEST(PlanProgram, HeadsThatNoGpuTakesAreRefused) {
  const std::string sizes = "model.hidden_size=1024 model.num_attention_heads=2 model.num_query_groups=2 ";
  const Outcome derived = plan("tests/tiny", sizes + "dist.device=cuda");
  EXPECT_EQ(derived.status, 2);
  EXPECT_TRUE(contains(derived.output, "model.num_attention_heads=2")) << derived.output;
  EXPECT_TRUE(contains(derived.output, "takes heads of up to 256 channels, not 512")) << derived.output;
  const Outcome given = plan("tests/tiny", sizes + "dist.device=cuda model.kv_channels=258");
  EXPECT_EQ(given.status, 2);
  EXPECT_TRUE(contains(given.output, "model.kv_channels=258")) << given.output;
  EXPECT_EQ(plan("tests/tiny", sizes + "dist.device=cuda model.kv_channels=256").status, 0);
  EXPECT_EQ(plan("tests/tiny", sizes + "dist.device=cpu").status, 0);
}

// Of 8 experts 2 on a rank; 4 ranks have 2 x 64 tokens each that choose 3 experts.
TEST(PlanProgram, TellsWhatExpertsNeed) {
  const std::string config = "plan " TERA_TEST_CONFIGS
                             "/tiny_qwen3_moe.yaml --world 4 train.micro_batch_size=2 "
                             "train.global_batch_size=8 "
                             "train.seq_length=64 dist.expert_model_parallel_size=4 ";
  const Outcome worst = run_program(config);
  ASSERT_EQ(worst.status, 0) << worst.output;
  EXPECT_TRUE(contains(worst.output, "experts: etp 1 x ep 4 x edp 1")) << worst.output;
  EXPECT_TRUE(
      contains(worst.output,
               "experts: 2 of 8 on a rank, with room for 1024 rows in a layer and microbatch; 384 come when the "
               "load is even, 1024 at most"))
      << worst.output;
  EXPECT_TRUE(contains(worst.output, "to experts and back a rank sends ")) << worst.output;
  const Outcome limited = run_program(config + "model.moe.expert_rank_capacity_factor=1.5");
  EXPECT_TRUE(contains(limited.output, "with room for 576 rows")) << limited.output;
}

TEST(PlanProgram, OneRankHasNoWorldToTellOf) {
  const Outcome outcome = plan("tests/tiny", "");
  EXPECT_EQ(outcome.status, 0);
  for (const char* words : {"ranks", "stage", "bubble", "sent by"})
    EXPECT_FALSE(contains(outcome.output, words)) << outcome.output;
}

TEST(PlanProgram, TakesAsFewRanksAsTheLayoutNeeds) {
  const std::string layout = "dist.tensor_model_parallel_size=2 dist.pipeline_model_parallel_size=2";
  EXPECT_EQ(plan_json("tests/tiny", layout).at("layout").at("world"), 4);
  EXPECT_EQ(plan_json("tests/tiny", layout + " --world 8").at("layout").at("data_parallel"), 2);
}

TEST(PlanProgram, WrongLayoutsAreRefusedWithTheRule) {
  const std::string tp = "dist.tensor_model_parallel_size=", pp = "dist.pipeline_model_parallel_size=";
  const std::string vp = "dist.virtual_pipeline_model_parallel_size=", layout = "dist.pipeline_model_parallel_layout=";
  const std::vector<std::pair<std::string, std::string>> mistakes{
      {tp + "8 " + pp + "16 --world 1000", "must divide the number of ranks, which is 1000; nearest: "},
      {tp + "8 " + pp + "16 --world 1000", "or 896 or 1024 ranks"},
      {tp + "7", "must divide model.num_attention_heads, which is 128"},
      {tp + "7", "nearest: 4 or 8"},
      {tp + "8 --world 16 train.global_batch_size=101", "nearest: 100 or 102"},
      {pp + "16", "126 layers cannot be split evenly over 16 pipeline stages"},
      {pp + "16 " + vp + "8", "dist.account_for_loss_in_pipeline_split=true, which makes it 128"},
      {vp + "2", "need pipeline_model_parallel_size of at least 2"},
      {pp + "2 " + vp + "3 dist.pipeline_schedule=zero_bubble_v", "zero_bubble_v has 2 chunks per rank, not 3"},
      {pp + "2 '" + layout + "Et*63|t*64L'", "places 127 layers (t) where model.num_layers is 126"},
      {pp + "4 '" + layout + "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL'", "pipeline_model_parallel_size=10 would fit"},
      {pp + "3 dist.num_layers_in_first_pipeline_stage=1", "125 are left for the 2 pipeline stages"},
      {tp + "2 dist.sequence_parallel=true train.seq_length=127", "nearest: train.seq_length 126 or 128"},
      {pp + "4 dist.microbatch_group_size_per_vp_stage=8", "needs pipeline_schedule=interleaved"},
      {"--world 0", "world=0: must be in 1..1048576"},
      {"--memory 0", "--memory 0: must be more than 0"},
      {"--memory inf", "--memory inf: must be more than 0"}};
  for (const auto& [arguments, words] : mistakes) {
    const Outcome outcome = plan("models/llama3-405b", "dist.device=cuda " + arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_TRUE(contains(outcome.output, words)) << arguments << "\n" << outcome.output;
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
  }
}

}  // namespace
}  // namespace tera::test
