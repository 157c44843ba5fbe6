// What `tera bench step` reports adds up.
#include "tera/train/bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/end_to_end/training_run.h"

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
  EXPECT_EQ(profile["to_host_beside_ms"].get<double>(), 0);
  EXPECT_GE(profile["idle_ms"].get<double>(), 0);
}

TEST(BenchStep, WithoutAProfileTimesOnlyTheStepsAskedFor) {
  const auto json = nlohmann::json::parse(bench_step(load_setup("tiny", {}), {.steps = 2, .warmup = 1, .json = true}));
  EXPECT_EQ(json["step_ms_all"].size(), 2u);
  EXPECT_TRUE(json["profile"].is_null());
}

}  // namespace
}  // namespace tera::test
