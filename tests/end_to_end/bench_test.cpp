// What `tera bench step` reports adds up.
#include "tera/bench/bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/bench/profile.h"
#include "tera/models/flops.h"
#include "tera/setup/load.h"
#include "tests/end_to_end/training_run.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

TEST(BenchStep, ProfileCoversTheStep) {
  const tera::Setup setup = load_setup("tiny", {"train.global_batch_size=4", "train.micro_batch_size=2"});
  const std::string text = bench_step(setup, {.steps = 3, .warmup = 1, .json = true, .profile = true});
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["step_ms_all"].size(), 7u) << "three timed steps and those around the profiled one";
  const auto& profile = json["profile"];
  const double parts = profile["gemm_ms"].get<double>() + profile["attention_ms"].get<double>() +
                       profile["memory_bound_ms"].get<double>() + profile["optimizer_ms"].get<double>() +
                       profile["transfer_ms"].get<double>() + profile["idle_ms"].get<double>();
  EXPECT_NEAR(parts, profile["step_ms"].get<double>(), 1e-6);
  for (const char* part : {"gemm_ms", "attention_ms", "memory_bound_ms", "optimizer_ms", "transfer_ms", "idle_ms"})
    EXPECT_GT(profile[part].get<double>(), 0) << part;
  for (const char* block : {"attention", "mlp", "embedding", "head", "optimizer"})
    EXPECT_NE(profile["table"].get<std::string>().find(block), std::string::npos) << block;
}

// On the CPU there is no other queue: copies to the host and back are transfers like all others.
TEST(BenchStep, ProfileShowsOffload) {
  const tera::Setup setup = load_setup("tiny", {"model.offload_modules=[attention, mlp]"});
  const auto json = nlohmann::json::parse(bench_step(setup, {.steps = 2, .warmup = 1, .json = true, .profile = true}));
  const auto& profile = json["profile"];
  EXPECT_NE(profile["table"].get<std::string>().find("\noffload "), std::string::npos) << profile["table"];
  EXPECT_GT(profile["transfer_ms"].get<double>(), 0);
  EXPECT_TRUE(profile["beside"].empty());
  EXPECT_GE(profile["idle_ms"].get<double>(), 0);
}

TEST(BenchStep, WithoutAProfileTimesOnlyTheStepsAskedFor) {
  const auto json = nlohmann::json::parse(bench_step(load_setup("tiny", {}), {.steps = 2, .warmup = 1, .json = true}));
  EXPECT_EQ(json["step_ms_all"].size(), 2u);
  EXPECT_TRUE(json["profile"].is_null());
}

// Ranks as threads move tensors on their own queues: transfers, and nothing beside.
TEST(BenchStep, SeveralRanks) {
  const TempFolder folder;
  const Overrides overrides{"dist.device=cpu", "dist.threads=1", "dist.tensor_model_parallel_size=2"};
  const LoadedConfig loaded = load_config(source_path("configs/tests/tiny.yaml"), overrides);
  const tera::Setup setup = resolve(loaded.config, Purpose::inspect, &loaded.origins, 4);
  const std::string text = bench_step(
      setup, {.steps = 2, .warmup = 1, .json = true, .profile = true, .trace = (folder.path() / "trace.json").string()},
      {.kind = LaunchKind::threads, .world = 4, .local = 4});
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["losses"].size(), 6u);
  const double flops = model_flops_per_token(setup.model, setup.batch.seq_length);
  EXPECT_NEAR(json["tflops"].get<double>(), json["tokens_per_s"].get<double>() * flops / 4e12,
              1e-9 * json["tflops"].get<double>());
  const auto& profile = json["profile"];
  EXPECT_GT(profile["transfer_ms"].get<double>(), 0);
  EXPECT_TRUE(profile["beside"].empty());

  const auto trace = nlohmann::json::parse(read_whole_file(folder.path() / "trace.json", 1 << 24))["traceEvents"];
  double gemm_us = 0;
  for (const auto& event : trace)
    if (event["ph"] == "X" && event["name"].get<std::string>().ends_with(" gemm"))
      gemm_us += event["dur"].get<double>();
  EXPECT_NEAR(gemm_us / 1e3, profile["gemm_ms"].get<double>(), 1e-6);
}

TEST(BenchStep, RefusesATraceOfNothing) {
  const std::string message = message_of<UserError>(
      [] { bench_step(load_setup("tiny", {}), {.steps = 2, .warmup = 1, .trace = "trace.json"}); });
  EXPECT_TRUE(contains(message, "--profile")) << message;
  const std::string nowhere = message_of<UserError>([] {
    bench_step(load_setup("tiny", {}),
               {.steps = 2, .warmup = 1, .profile = true, .trace = "/no/such/folder/trace.json"});
  });
  EXPECT_TRUE(contains(nowhere, "there is no folder /no/such/folder")) << nowhere;
}

// What ran beside a rank's queue, against the parts of it in which the queue worked.
TEST(Profile, Overlap) {
  const Profile profile{.total_ms = 10,
                        .work = {{{1, 2}, OpKind::gemm, "mlp"},
                                 {{2, 4}, OpKind::memory_bound, "mlp"},
                                 {{6, 7}, OpKind::gemm, "attention"}},
                        .async_calls = {{{0, 3}, "tp", "all_gather"},      // 2 of 3
                                        {{3.5, 6.5}, "tp", "all_gather"},  // 1 of 3
                                        {{4, 6}, "pp", "exchange"},        // none
                                        {{1.25, 1.75}, "pp", "all_gather"}}};
  const auto overlaps = profile.overlaps();
  ASSERT_EQ(overlaps.size(), 3u);
  EXPECT_EQ(overlaps.at("tp all_gather").calls, 2);
  EXPECT_DOUBLE_EQ(overlaps.at("tp all_gather").ms, 6);
  EXPECT_DOUBLE_EQ(overlaps.at("tp all_gather").covered, 3);
  EXPECT_DOUBLE_EQ(overlaps.at("pp exchange").covered, 0);
  EXPECT_DOUBLE_EQ(overlaps.at("pp all_gather").covered, 0.5);
  EXPECT_DOUBLE_EQ(profile.busy(), 4);
  EXPECT_DOUBLE_EQ(profile.of(OpKind::gemm), 2);
  EXPECT_NE(profile.table().find("tp all_gather"), std::string::npos);
}

}  // namespace
}  // namespace tera::test
