// `tera bench ops` at tiny shapes: every family is there, and every figure could be true.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "tera/base/error.h"
#include "tera/bench/bench_ops.h"

namespace tera {
namespace {

BenchOpsOptions tiny() {
  BenchOpsOptions options;
  options.dist = {.device = DeviceChoice::cpu, .threads = 2};
  options.shapes = {.tokens = 32,
                    .sequence = 16,
                    .hidden = 24,
                    .ffn = 40,
                    .vocab = 50,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_size = 6,
                    .parameters = 1000,
                    .experts = {{"tiny", 20, 3, 24, 16}}};
  options.milliseconds = 1;
  return options;
}

std::vector<OpTime> run(const BenchOpsOptions& options) {
  Backend backend = make_backend(options.dist);
  return time_ops(backend, options);
}

const OpTime& find(const std::vector<OpTime>& times, const std::string& op) {
  for (const OpTime& time : times)
    if (time.op == op) return time;
  fail("no row {}", op);
}

TEST(BenchOps, TimesEveryFamily) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
    BenchOpsOptions options = tiny();
    options.precision = precision;
    const std::vector<OpTime> times = run(options);
    std::set<std::string> families;
    double best_gemm = 0;
    for (const OpTime& time : times) {
      SCOPED_TRACE(time.op);
      EXPECT_TRUE(std::isfinite(time.ms) && time.ms > 0);
      EXPECT_TRUE(std::isfinite(time.rate()) && time.rate() > 0);
      EXPECT_TRUE(std::isfinite(time.of_limit) && time.of_limit > 0);
      EXPECT_FALSE(time.shape.empty());
      families.insert(time.op.substr(0, time.op.find_first_of(" ,")));
      if (time.is_gemm()) best_gemm = std::max(best_gemm, time.of_limit);
    }
    EXPECT_EQ(families, (std::set<std::string>{"adam",
                                               "attention",
                                               "attention_back",
                                               "column_sum",
                                               "combine",
                                               "copy",
                                               "cross_entropy",
                                               "cross_entropy_stats",
                                               "dropout",
                                               "embedding",
                                               "embedding_back",
                                               "fill",
                                               "gemm",
                                               "grouped_gemm",
                                               "grouped_weight_gradient",
                                               "norm",
                                               "norm_back",
                                               "rope",
                                               "sgd",
                                               "sum_squares",
                                               "swiglu",
                                               "swiglu_back"}));
    EXPECT_EQ(find(times, "copy").of_limit, 1);
    EXPECT_EQ(best_gemm, 1);
  }
}

TEST(BenchOps, CountsWorkByTheDefinition) {
  const std::vector<OpTime> times = run(tiny());
  EXPECT_EQ(find(times, "copy").bytes, 2.0 * 32 * 40 * 4);
  EXPECT_EQ(find(times, "norm").bytes, 2.0 * 32 * 24 * 4);
  EXPECT_EQ(find(times, "rope").bytes, 2.0 * 32 * 6 * 6 * 4);
  EXPECT_EQ(find(times, "adam").bytes, 7.0 * 1000 * 4);  // no copy of fp32 weights
  EXPECT_EQ(find(times, "adam, moments in bf16").bytes, 3.0 * 1000 * 4 + 4.0 * 1000 * 2);
  EXPECT_EQ(find(times, "gemm gate and up").flops, 2.0 * 32 * 80 * 24);
  for (const char* op : {"gemm as grouped up, tiny", "grouped_gemm up, tiny", "grouped_gemm dx of up, tiny",
                         "grouped_weight_gradient up, tiny", "grouped_weight_gradient written, up, tiny"})
    EXPECT_EQ(find(times, op).flops, 2.0 * 20 * 32 * 24) << op;
  EXPECT_EQ(find(times, "gemm qkv + bias").flops, find(times, "gemm qkv").flops);
  EXPECT_EQ(find(times, "gemm dw of down").flops, 2.0 * 32 * 40 * 24);
  EXPECT_EQ(find(times, "attention_back, 16 per sequence").flops, 2 * find(times, "attention, 16 per sequence").flops);
}

TEST(BenchOps, OnlyWhatIsAskedForAndTheLimits) {
  BenchOpsOptions options = tiny();
  options.only = "rope";
  std::set<std::string> names;
  for (const OpTime& time : run(options)) names.insert(time.op);
  EXPECT_EQ(names, (std::set<std::string>{"copy", "gemm gate and up", "rope"}));
  const std::string table = bench_ops(options);
  EXPECT_NE(table.find("[32,6,6]"), std::string::npos) << table;
  EXPECT_NE(table.find("B/s"), std::string::npos) << table;
  EXPECT_NE(table.find("with --only, the\nfastest of the rows shown."), std::string::npos) << table;
  EXPECT_NE(table.find("is both in one call: compare it\nwith the sum of both.\n"), std::string::npos) << table;
  options.json = true;
  const auto json = nlohmann::json::parse(bench_ops(options));
  EXPECT_EQ(json.at("ops").size(), 3u);
  EXPECT_GT(json.at("ops").at(0).at("tb_per_s").get<double>(), 0);
}

TEST(BenchOps, RefusesShapesThatDoNotGoTogether) {
  BenchOpsOptions options = tiny();
  options.shapes.sequence = 5;
  EXPECT_THROW(run(options), UserError);
  options = tiny();
  options.shapes.kv_heads = 3;
  EXPECT_THROW(run(options), UserError);
  options = tiny();
  options.shapes.parameters = std::int64_t{1} << 45;
  EXPECT_THROW(run(options), UserError);
}

}  // namespace
}  // namespace tera
