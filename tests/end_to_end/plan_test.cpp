// `tera plan` of worlds larger than this machine, through the real program.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tera/plan/memory_plan.h"
#include "tests/end_to_end/program.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

Outcome plan(const std::string& config, const std::string& arguments) {
  return run_program(fmt::format("plan \"{}/{}.yaml\" {}", source_path("configs"), config, arguments));
}

nlohmann::json plan_json(const std::string& config, const std::string& arguments, int status = 0) {
  const Outcome outcome = plan(config, arguments + " --json");
  EXPECT_EQ(outcome.status, status) << outcome.output;
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

// The plan of dynamic context parallelism is that of every sequence over all ranks, with more microbatches and memory
// for what other degrees need.
TEST(PlanProgram, DynamicContext) {
  const std::string run =
      "dist.device=cuda mixed_precision.precision=bf16 train.seq_length=32768 train.global_batch_size=16 --world 16 "
      "dist.context_parallel_size=8 dataset.reset_attention_mask=true ";
  for (const char* how : {"p2p", "all_gather", "a2a"}) {
    const std::string fixed = run + "dist.cp_comm_type=" + how,
                      assigned = fixed + " dist.dynamic_context_parallel=true";
    const nlohmann::json before = plan_json("models/llama3.1-8b", fixed),
                         then = plan_json("models/llama3.1-8b", assigned);
    EXPECT_EQ(then.at("layout").at("context_degrees"), (std::vector<int>{1, 2, 4, 8}));
    EXPECT_EQ(then.at("microbatches"), 8);
    EXPECT_EQ(then.at("most_microbatches"), 10);
    const auto stage = [](const nlohmann::json& plan) { return plan.at("stages")[0]; };
    EXPECT_EQ(item_bytes(stage(then), "weights"), item_bytes(stage(before), "weights"));
    EXPECT_GE(then.at("total_bytes"), before.at("total_bytes"));
    const std::string cp = "cp";
    EXPECT_EQ(stage(then).at("groups").at(cp).at("calls").get<int>() * 8,
              stage(before).at("groups").at(cp).at("calls").get<int>() * 10);
    const Outcome table = plan("models/llama3.1-8b", assigned);
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
    const std::int64_t boundaries = (first || last ? 15 : 16) * batches;  // y and dx of each chunk; none at the ends
    EXPECT_EQ(stage.at("groups").at("pp").at("calls"), boundaries) << i;
    EXPECT_EQ(stage.at("groups").at("pp").at("bytes"), static_cast<double>(boundaries * 8192 / tp * hidden * 2)) << i;
    EXPECT_EQ(stage.at("groups").at("dp_cp").at("bytes"), static_cast<double>(parameters * (4 + 2) / dp * (dp - 1)))
        << i;
  }
  const double tokens = 2048.0 * 8192, model = 6 * 405.8e9 * tokens;  // attention's FLOPs come on top
  EXPECT_GT(json.at("flops_per_step").get<double>(), model);
  EXPECT_LT(json.at("flops_per_step").get<double>(), 1.1 * model);
}

// A rank's copy of what it saves: bf16 weights, and masters and two moments of its shard in fp32.
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

// Sharded state: with ZeRO it is less.
TEST(PlanProgram, MomentsInBf16TakeTwoBytesLessForEachParameter) {
  const std::string first = " optimizer.exp_avg_dtype=bf16", second = " optimizer.exp_avg_sq_dtype=bf16";
  const std::string saving =
      "optimizer.adam_beta2=0.95 mixed_precision.precision=bf16 checkpoint.save=/nowhere checkpoint.async_save=true "
      "train.global_batch_size=8 ";
  const std::string zero = "--world 4 ddp.data_parallel_sharding_strategy=";
  for (const auto& [layout, shards] : {std::pair<std::string, int>{"--world 1", 1},
                                       {zero + "optim", 4},
                                       {zero + "optim_grads", 4},
                                       {zero + "optim_grads_params", 4}}) {
    const auto stage_of = [&, run = saving + layout](const std::string& more) {
      return plan_json("tests/tiny", run + more).at("stages")[0];
    };
    const nlohmann::json plain = stage_of(""), both = stage_of(first + second);
    // Buckets are cut into shards of multiples of 128 elements; main weights have the same, in four bytes.
    const std::int64_t elements = item_bytes(plain, "master weights") / 4;
    const std::int64_t parameters = plain.at("parameters");
    EXPECT_GE(elements, parameters / shards) << layout;
    EXPECT_LE(elements, parameters / shards + 128 * 8) << layout;
    const auto saved = [&](const nlohmann::json& stage) {
      EXPECT_EQ(plain.at("total_bytes").get<std::int64_t>() - stage.at("total_bytes").get<std::int64_t>(),
                item_bytes(plain, "optimizer") - item_bytes(stage, "optimizer"));
      return item_bytes(plain, "optimizer") - item_bytes(stage, "optimizer");
    };
    EXPECT_EQ(saved(stage_of(first)), 2 * elements) << layout;
    EXPECT_EQ(saved(stage_of(second)), 2 * elements) << layout;
    EXPECT_EQ(saved(both), 4 * elements) << layout;
    if (shards > 1) continue;
    // Copies for saving do not have them either, which leave out padding rows of the vocabulary. Headers differ by some
    // letters.
    const std::int64_t copied = plain.at("host_bytes").get<std::int64_t>() - both.at("host_bytes").get<std::int64_t>();
    const std::int64_t padding = 2 * (128 - 61) * 32;
    EXPECT_LE(std::abs(copied - 4 * (parameters - padding)), 1024);
  }
}

// Names and bytes of a table; the bytes of the workspace, percentages and the total depend on the machine.
std::vector<std::string> items_and_bytes(std::istream& in) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("workspace")) break;
    if (!lines.empty() || line.starts_with("weights ")) lines.push_back(line.substr(0, 46));
  }
  return lines;
}

TEST(PlanProgram, PrintsTheSampleOfTheDocuments) {
  std::ifstream page(source_path("docs/memory.md"));
  std::istringstream printed(plan("quickstart", "dist.device=cpu").output);
  const std::vector<std::string> lines = items_and_bytes(printed);
  EXPECT_GT(lines.size(), 40u);
  EXPECT_EQ(items_and_bytes(page), lines);
}

// Messages are on standard error, apart from the JSON.
TEST(PlanProgram, WarnsOfDecaysThatBf16Loses) {
  const std::string words = "warning: optimizer.exp_avg_sq_dtype is bf16, and optimizer.adam_beta2 is 0.999: ";
  const std::string file = " " + source_path("configs/tests/tiny.yaml") + " optimizer.exp_avg_sq_dtype=bf16 ";
  for (const std::string& command : {"plan" + file, "plan" + file + "--json", "config" + file}) {
    const Outcome error = run_program(command + " optimizer.adam_beta2=0.999 2>&1 >/dev/null");
    EXPECT_TRUE(error.output.starts_with(words)) << command << "\n" << error.output;
    EXPECT_EQ(std::count(error.output.begin(), error.output.end(), '\n'), 1) << error.output;
    EXPECT_EQ(run_program(command + " optimizer.adam_beta2=0.95 2>&1 >/dev/null").output, "") << command;
  }
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
  EXPECT_EQ(outcome.status, 3);
  const std::string& text = outcome.output;
  EXPECT_TRUE(
      contains(text, "1024 ranks: tp 8 with sequence parallelism x pp 16 (interleaved, 8 chunks a rank) x dp 8"))
      << text;
  EXPECT_TRUE(contains(text, "stage 15  layer 14")) << text;
  EXPECT_TRUE(contains(text, "does not fit 119.00 GiB (120.00 GiB less 1.00 GiB for the driver and its libraries): "))
      << text;
  EXPECT_TRUE(contains(text, "; it fits with a smaller train.seq_length, or ")) << text;
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 100);
  for (const char* words : {"largest", "\n  tp ", "\n  pp ", "\n  dp_cp ", "bubble: ", "  fits\n"})
    EXPECT_TRUE(contains(text, words)) << words << "\n" << text;
}

// The JSON and the exit status say whether the plan fits, so that scripts need not read sentences.
TEST(PlanProgram, SaysToProgramsWhatFits) {
  const nlohmann::json none = plan_json("tests/tiny", "dist.pipeline_model_parallel_size=2 --memory 1e-6", 3);
  const nlohmann::json all = plan_json("tests/tiny", "dist.pipeline_model_parallel_size=2 --memory 1");
  for (std::size_t stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(none.at("stages").at(stage).at("fits"), false);
    EXPECT_EQ(all.at("stages").at(stage).at("fits"), true);
  }
  EXPECT_EQ(none.at("fits"), false);
  EXPECT_EQ(all.at("fits"), true);
  const nlohmann::json without_memory = plan_json("tests/tiny", "");
  EXPECT_FALSE(without_memory.contains("fits"));
  EXPECT_FALSE(without_memory.at("stages").at(0).contains("fits"));
  EXPECT_EQ(plan("tests/tiny", "--memory 1").status, 0);

  // The last stage has the loss, and needs more than the first.
  const nlohmann::json& stages = all.at("stages");
  const std::size_t largest = all.at("largest_stage"), total = stages.at(largest).at("total_bytes");
  ASSERT_LT(stages.at(1 - largest).at("total_bytes"), total);
  const std::string less =
      fmt::format("dist.pipeline_model_parallel_size=2 --memory {:.12f}", (static_cast<double>(total) - 1) / (1 << 30));
  const nlohmann::json one = plan_json("tests/tiny", less, 3);
  EXPECT_EQ(one.at("fits"), false);
  EXPECT_EQ(one.at("stages").at(largest).at("fits"), false);
  EXPECT_EQ(one.at("stages").at(1 - largest).at("fits"), true);
}

// The text after "does not fit ...: stage 0 is the largest and needs 3.00 GiB more; ".
std::string advice_of(const std::string& config, const std::string& arguments) {
  const Outcome outcome = plan(config, arguments);
  EXPECT_EQ(outcome.status, 3) << outcome.output;
  const std::size_t begin = outcome.output.find(" more; ", outcome.output.find("\ndoes not fit"));
  EXPECT_NE(begin, std::string::npos) << outcome.output;
  return begin == std::string::npos ? ""
                                    : outcome.output.substr(begin + 7, outcome.output.find('\n', begin) - begin - 7);
}

// "it fits with A, or B"; "C needs less, but does not fit alone".
struct Advice {
  std::string fitting, too_large;

  explicit Advice(const std::string& text) : fitting(text) {
    const std::size_t at = std::min({text.find("; dist."), text.find("; model."), text.find("; ddp.")});
    if (at == std::string::npos) return;
    fitting = text.substr(0, at);
    too_large = text.substr(at + 2);
    EXPECT_TRUE(too_large.ends_with(" needs less, but does not fit alone")) << text;
  }
};

std::string total_of(const std::string& config, const std::string& arguments) {
  return format_bytes(plan_json(config, arguments).at("total_bytes").get<std::size_t>());
}

// Each change that the message names was rehearsed: the plan with it has the bytes that the message says.
TEST(PlanProgram, SaysWhatWouldNeedLess) {
  const std::string model = "models/llama3.2-1b", full = "model.recompute_granularity=full";
  const std::string rows =
      "dist.device=cuda mixed_precision.precision=bf16 train.micro_batch_size=4 train.global_batch_size=8 "
      "train.seq_length=4096 ";
  const auto named = [&](const std::string& way, const std::string& words, const std::string& more = "") {
    return fmt::format("{}{} ({}{}", way, words, total_of(model, rows + way + more), more.empty() ? "" : " a rank");
  };
  const std::string offload = "model.offload_modules=[attn_norm,attention,mlp_norm,mlp]";
  const std::string cp = "dist.context_parallel_size=", tp = "dist.tensor_model_parallel_size=";
  const Advice some(advice_of(model, rows + "--memory 30"));
  EXPECT_TRUE(some.fitting.starts_with("it fits with a smaller train.micro_batch_size or train.seq_length, or "));
  EXPECT_TRUE(contains(some.fitting, named(full, "") + ")")) << some.fitting;
  EXPECT_TRUE(contains(some.fitting, named(tp + "2", " on 2 ranks", " --world 2"))) << some.fitting;
  EXPECT_TRUE(contains(some.fitting, named(cp + "4", " on 4 ranks", " --world 4"))) << "2 do not fit\n" << some.fitting;
  EXPECT_FALSE(contains(some.fitting, tp + "4")) << "2 fit\n" << some.fitting;
  EXPECT_FALSE(contains(some.fitting, "sharding_strategy")) << "there is nobody to share with\n" << some.fitting;
  EXPECT_EQ(some.too_large, "");
  const nlohmann::json moved = plan_json(model, rows + offload).at("stages")[0].at("host_bytes");
  EXPECT_TRUE(contains(
      some.fitting, fmt::format("{}, and {} of the host)", named(offload, ""), format_bytes(moved.get<std::size_t>()))))
      << some.fitting;

  const Advice less(advice_of(model, rows + "--memory 20"));
  EXPECT_TRUE(contains(less.fitting, named(tp + "4", " on 4 ranks", " --world 4"))) << less.fitting;
  EXPECT_FALSE(contains(less.fitting, "a smaller")) << "weights and moments alone take more\n" << less.fitting;
  EXPECT_TRUE(contains(less.too_large, named(full, ""))) << less.too_large;
  EXPECT_FALSE(contains(less.fitting, full)) << less.fitting;

  const Advice here(advice_of(model, rows + "--memory 27.7"));
  const std::string inputs = "model.offload_modules=[attn_norm]";
  const std::size_t pair =
      here.fitting.find(fmt::format("{} and {} ({}, and ", full, inputs, total_of(model, rows + full + " " + inputs)));
  EXPECT_LT(pair, here.fitting.find(tp + "2 on 2 ranks (")) << "changes that need no other rank\n" << here.fitting;
}

TEST(PlanProgram, SaysWhatReplicasCanShare) {
  const std::string model = "models/llama3.2-1b", zero = "ddp.data_parallel_sharding_strategy=optim";
  const std::string rows =
      "dist.device=cuda mixed_precision.precision=bf16 train.micro_batch_size=4 train.global_batch_size=8 "
      "train.seq_length=4096 model.recompute_granularity=full --world 2 ";
  const Advice two(advice_of(model, rows + "--memory 22"));
  EXPECT_TRUE(contains(two.fitting, fmt::format("{} ({} a rank)", zero, total_of(model, rows + zero)))) << two.fitting;
  EXPECT_FALSE(contains(two.fitting, zero + "_grads")) << "the first that fits\n" << two.fitting;
  EXPECT_TRUE(contains(two.too_large, "dist.context_parallel_size=2 (")) << "by ranks that are replicas";
  EXPECT_FALSE(contains(two.fitting + two.too_large, "recompute_granularity"));

  const std::string odd = advice_of(model,
                                    "dist.device=cuda mixed_precision.precision=bf16 train.micro_batch_size=1 "
                                    "train.global_batch_size=1 train.seq_length=16386 --memory 20");
  EXPECT_FALSE(contains(odd, "context_parallel")) << "16386 tokens cannot be cut into four\n" << odd;
  EXPECT_FALSE(contains(odd, "micro_batch_size")) << odd;
}

// Models that no one change makes small enough.
TEST(PlanProgram, SaysWhichTwoChangesFit) {
  const std::string zero3 = "ddp.data_parallel_sharding_strategy=optim_grads_params";
  const std::string tp = "dist.tensor_model_parallel_size=", world = "--world 64 dist.device=cuda ";
  for (const auto& [model, size] : {std::pair("models/mixtral-8x22b", "2"), std::pair("models/qwen3-235b-a22b", "4")}) {
    const Advice advice(advice_of(model, world + "--memory 80"));
    EXPECT_TRUE(advice.fitting.starts_with("no one change would do; it fits with ")) << advice.fitting;
    const std::string then = total_of(model, world + zero3 + " " + tp + size);
    EXPECT_TRUE(contains(advice.fitting, fmt::format("{} and {}{} ({} a rank)", zero3, tp, size, then)))
        << advice.fitting;
    EXPECT_EQ(plan(model, world + "--memory 80 " + zero3 + " " + tp + size).status, 0);
    EXPECT_TRUE(advice.too_large.starts_with(fmt::format("{} ({} a rank), or ", zero3, total_of(model, world + zero3))))
        << advice.too_large;
  }

  const Advice none(advice_of("models/deepseek-v3", world + "--memory 80"));
  EXPECT_TRUE(none.fitting.starts_with("no one change would do, nor any two that were tried: ")) << none.fitting;
  const std::string nearest = total_of("models/deepseek-v3", world + zero3 + " " + tp + "8");
  EXPECT_TRUE(contains(none.fitting, fmt::format("; nearest comes {} and {}8 ({} a rank)", zero3, tp, nearest)))
      << none.fitting;
}

// The advice is expert capacity, where rows of all ranks may come to one, and experts on more ranks.
TEST(PlanProgram, SaysWhatExpertsCanDo) {
  const std::string factor = "model.moe.expert_rank_capacity_factor=", model = "models/mixtral-8x22b";
  const std::string layout =
      "--world 128 dist.device=cuda dist.tensor_model_parallel_size=4 dist.sequence_parallel=true "
      "dist.pipeline_model_parallel_size=4 dist.virtual_pipeline_model_parallel_size=14 "
      "dist.expert_tensor_parallel_size=1 model.moe.token_dispatcher_type=alltoall train.seq_length=4096 "
      "train.global_batch_size=128 optimizer.use_distributed_optimizer=true ";
  const std::string ep = "dist.expert_model_parallel_size=";
  const auto capacity = [&](const std::string& value) {
    return fmt::format("{}{} ({} a rank; a step whose load exceeds it ends with an error)", factor, value,
                       total_of(model, layout + ep + "8 " + factor + value));
  };
  const auto advice = [&](const std::string& more) { return Advice(advice_of(model, layout + more)); };
  EXPECT_TRUE(contains(advice(ep + "8 --memory 80").fitting, capacity("1.5")));
  EXPECT_TRUE(contains(advice(ep + "8 --memory 100").fitting, capacity("2"))) << "enough already";
  EXPECT_TRUE(contains(advice(ep + "8 --memory 64").too_large, capacity("1.5")));
  EXPECT_FALSE(contains(advice(ep + "8 --memory 64 " + factor + "1.5").fitting, factor)) << "there already";

  const std::string fewer = layout + factor + "2 ", more = ep + "4";
  const Advice spread(advice_of(model, fewer + ep + "2 --memory 110"));
  EXPECT_TRUE(contains(spread.fitting, fmt::format("{} ({} a rank)", more, total_of(model, fewer + more))))
      << spread.fitting;
}

// A plan for a GPU keeps as much of it free as a run does.
TEST(PlanProgram, KeepsTheSameFreeOfAGpu) {
  const auto fits = [](const char* device, int status) {
    return plan_json("tests/tiny", fmt::format("dist.device={} --memory 1.0001", device), status).at("fits");
  };
  EXPECT_EQ(fits("cpu", 0), true);
  EXPECT_EQ(fits("cuda", 3), false);
}

TEST(PlanProgram, HeadsThatNoGpuSupportsAreRefused) {
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

// A rank has 2 of 8 experts; 4 ranks have 2 x 64 tokens each that choose 3 experts.
TEST(PlanProgram, ReportsWhatExpertsNeed) {
  const std::string config = "plan " + source_path("configs/tests/tiny_qwen3_moe.yaml") +
                             " --world 4 train.micro_batch_size=2 "
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

TEST(PlanProgram, OneRankHasNoWorldToReport) {
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

// The number of planned ranks is given by another flag than that of started ranks; each command names its own.
TEST(PlanProgram, NamesItsOwnFlagForRanks) {
  const std::string config = fmt::format(" \"{}/tests/tiny_qwen3_moe.yaml\" ", source_path("configs"));
  const auto refusal = [&](const std::string& command, const std::string& arguments) {
    const Outcome outcome = run_program(command + config + arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    return outcome.output;
  };
  for (const char* command : {"plan", "config"}) {
    const std::string one = refusal(command, "dist.expert_model_parallel_size=2 --world 1");
    EXPECT_TRUE(contains(one, "or 2 ranks (--world N)\n")) << one;
    const std::string other = refusal(command, "--ranks 4");
    EXPECT_TRUE(contains(other, fmt::format("{} starts none: write --world N", command))) << other;
  }
  for (const char* command : {"train", "bench step"}) {
    const std::string one = refusal(command, "dist.expert_model_parallel_size=2");
    EXPECT_TRUE(contains(one, "or 2 ranks (--ranks N, or mpirun -n N)\n")) << one;
    for (const char* flag : {"--world 4", "--world=4"}) {
      const std::string other = refusal(command, flag);
      EXPECT_TRUE(contains(other, "; write --ranks N, or start it with mpirun -n N")) << other;
    }
  }
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

TEST(PlanProgram, SaysThatAPlanIsNotForGpus) {
  const std::string words = "warning: planned for a CPU: dist.device=auto finds no GPU here; dist.device=cuda plans";
  const auto warned = [&](const std::string& arguments) {
    const Outcome outcome = plan("tests/tiny", arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    const bool for_cpu = contains(outcome.output, "on the CPU");
    EXPECT_TRUE(for_cpu || !contains(outcome.output, words)) << outcome.output;
    return !for_cpu || contains(outcome.output, words);
  };
  EXPECT_TRUE(warned("dist.device=auto --memory 1"));
  EXPECT_TRUE(warned("dist.device=auto --world 2"));
  EXPECT_FALSE(warned("dist.device=cpu --memory 1"));
  EXPECT_FALSE(contains(plan("tests/tiny", "dist.device=auto").output, words));
  EXPECT_FALSE(contains(plan("tests/tiny", "dist.device=auto --memory 1 --json").output, words));
}

}  // namespace
}  // namespace tera::test
