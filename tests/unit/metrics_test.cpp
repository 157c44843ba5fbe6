#include "tera/train/sinks/metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "tera/base/error.h"
#include "tera/base/log.h"
#include "tera/train/sinks/console.h"
#include "tests/support/count_news.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using nlohmann::json;

// A console whose output can be looked at.
struct ConsoleFile {
  explicit ConsoleFile(const TempFolder& folder)
      : path(folder / "console"), file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600)) {}
  std::string text() const { return slurp(path); }
  std::filesystem::path path;
  FileDescriptor file;
};

// What every run has, as the trainer lists it; a test changes numbers, or adds its own behind them.
struct SampleStep {
  explicit SampleStep(std::int64_t number) : step(number) {}

  template <class T>
  SampleStep& set(std::string_view name, T value) {
    for (Metric& metric : metrics)
      if (metric.name == name) metric.value = value;
    return *this;
  }
  template <class T>
  SampleStep& add(std::string_view name, T value, std::string_view console = {}) {
    metrics[count++] = {name, value, console};
    return *this;
  }
  // A metric before the last, which is `skipped`.
  template <class T>
  SampleStep& add_before_skipped(std::string_view name, T value) {
    metrics[count] = metrics[count - 1];
    metrics[count++ - 1] = {name, value};
    return *this;
  }
  operator StepMetrics() const {  // NOLINT(google-explicit-constructor): it is one
    return {.step = step, .values = std::span(metrics).first(count)};
  }

  std::int64_t step;
  std::array<Metric, 20> metrics{{{"loss", 5.545177459716797},
                                  {"grad_norm", 1.25},
                                  {"lr", 3e-4},
                                  {"tokens", step * 2048},
                                  {"step_ms", 51.5},
                                  {"data_ms", 0.25},
                                  {"tokens_per_s", 39766.99},
                                  {"tflops_per_device", 0.0834},
                                  {"mfu", {}},
                                  {"skipped", false}}};
  std::size_t count = 10;
};

SampleStep sample_step(std::int64_t step) { return SampleStep(step); }

TEST(StepMetrics, FindsNumbersByName) {
  const SampleStep sample = sample_step(3).add("mtp_loss", 2.5);
  const StepMetrics metrics = sample;
  EXPECT_EQ(metrics.number("loss"), 5.545177459716797);
  EXPECT_EQ(metrics.number("tokens"), 3 * 2048.0);
  EXPECT_EQ(metrics.maybe("mtp_loss"), 2.5);
  EXPECT_EQ(metrics.maybe("mfu"), std::nullopt) << "it is not known";
  EXPECT_EQ(metrics.maybe("z_loss"), std::nullopt) << "it is not there";
  EXPECT_FALSE(metrics.is_set("skipped"));
  EXPECT_FALSE(metrics.is_set("loss"));
  EXPECT_THROW(metrics.number("z_loss"), Error);
  const SampleStep skipped = sample_step(3).set("skipped", true);
  EXPECT_TRUE(StepMetrics(skipped).is_set("skipped"));
}

TEST(JsonlSink, WritesTheContractsFieldsInOrder) {
  const TempFolder folder;
  JsonlSink sink(folder / "m.jsonl", AppendFile::Start::empty);
  sink.step(sample_step(1));
  EXPECT_EQ(
      slurp(folder / "m.jsonl"),
      R"({"step":1,"loss":5.545177459716797,"grad_norm":1.25,"lr":0.0003,"tokens":2048,"step_ms":51.5,"data_ms":0.25,)"
      R"("tokens_per_s":39766.99,"tflops_per_device":0.0834,"mfu":null,"skipped":false})"
      "\n");
  sink.step(sample_step(2).set("mfu", 0.5).set("skipped", true).add_before_skipped("loss_scale", 65536.0));
  const std::array<SetLoss, 2> sets{SetLoss{"web", 3.5}, SetLoss{"books", 4.5}};
  sink.eval({.step = 3, .eval_loss = 4, .tokens = 4096, .sets = sets});
  const std::string several = slurp(folder / "m.jsonl");
  EXPECT_TRUE(several.ends_with(
      "{\"step\":3,\"eval_loss\":4.0,\"tokens\":4096,\"eval_loss/web\":3.5,\"eval_loss/books\":4.5}\n"))
      << several;
  sink.eval({.step = 2, .eval_loss = 4, .tokens = 4096});
  const std::string all = slurp(folder / "m.jsonl");
  EXPECT_TRUE(contains(all, R"("mfu":0.5,"loss_scale":65536.0,"skipped":true})")) << all;
  EXPECT_TRUE(all.ends_with("{\"step\":2,\"eval_loss\":4.0,\"tokens\":4096}\n")) << all;
}

TEST(JsonlSink, ReportsMtpLayers) {
  const TempFolder folder;
  const std::vector<double> losses{2.5, 3.5};
  JsonlSink sink(folder / "m.jsonl", AppendFile::Start::empty);
  sink.step(sample_step(1).add("mtp_loss", 2.5));
  EXPECT_TRUE(slurp(folder / "m.jsonl")
                  .ends_with(R"("skipped":false,"mtp_loss":2.5})"
                             "\n"));
  sink.step(sample_step(1).add("mtp_loss", 3.0).add("mtp_losses", std::span<const double>(losses)));
  EXPECT_TRUE(slurp(folder / "m.jsonl")
                  .ends_with(R"("skipped":false,"mtp_loss":3.0,"mtp_losses":[2.5,3.5]})"
                             "\n"));
}

TEST(JsonlSink, ReportsExperts) {
  const TempFolder folder;
  const std::vector<double> worst{1.5, 2}, unused{0, 0.25};
  const std::vector<std::int32_t> load{3, 1, 2, 2, 4, 4, 0, 0};
  SampleStep experts = sample_step(1)
                           .add("load_balancing_loss", 1.25)
                           .add("z_loss", 0.5)
                           .add("moe.load_max_over_mean", std::span<const double>(worst))
                           .add("moe.unused_experts", std::span<const double>(unused));
  JsonlSink sink(folder / "m.jsonl", AppendFile::Start::empty);
  sink.step(experts);
  const std::string plain = R"("skipped":false,"load_balancing_loss":1.25,"z_loss":0.5,)"
                            R"("moe.load_max_over_mean":[1.5,2.0],"moe.unused_experts":[0.0,0.25])";
  EXPECT_TRUE(slurp(folder / "m.jsonl").ends_with(plain + "}\n")) << slurp(folder / "m.jsonl");
  sink.step(experts.add("moe.expert_load", MetricTable{.values = load, .columns = 4}));
  EXPECT_TRUE(slurp(folder / "m.jsonl")
                  .ends_with(plain + R"(,"moe.expert_load":[[3,1,2,2],[4,4,0,0]]})"
                                     "\n"))
      << slurp(folder / "m.jsonl");
}

// Numbers of the largest width, for the largest supported number of experts.
TEST(JsonlSink, HasCapacityForAllExperts) {
  const TempFolder folder;
  constexpr std::size_t layers = 60, experts = 512;
  const std::vector<double> widest(layers, -1.2345678901234567e-300);
  const std::vector<std::int32_t> load(layers * experts, 2147483647);
  JsonlSink sink(folder / "m.jsonl", AppendFile::Start::empty);
  sink.step(sample_step(1)
                .add("moe.load_max_over_mean", std::span<const double>(widest))
                .add("moe.unused_experts", std::span<const double>(widest))
                .add("moe.expert_load", MetricTable{.values = load, .columns = experts}));
  EXPECT_TRUE(slurp(folder / "m.jsonl").ends_with(",2147483647]]}\n"));
}

TEST(JsonlSink, LossReadsBackBitwiseAndIsAlwaysJson) {
  const TempFolder folder;
  const auto path = folder / "m.jsonl";
  for (const double loss : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 1e22, 123456789.0, 0.1f * 3.0}) {
    JsonlSink sink(path, AppendFile::Start::empty);
    sink.step(sample_step(1).set("loss", loss));
    EXPECT_EQ(std::bit_cast<std::uint64_t>(json::parse(slurp(path))["loss"].get<double>()),
              std::bit_cast<std::uint64_t>(loss));
  }
  const double infinity = std::numeric_limits<double>::infinity();
  JsonlSink sink(path, AppendFile::Start::empty);
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  constexpr double widest = -1.2345678901234567e-300;
  SampleStep m = sample_step(1).set("tokens", largest).set("loss", std::nan("")).set("grad_norm", infinity);
  m.set("lr", -infinity).add_before_skipped("loss_scale", widest).step = largest;
  for (const char* name : {"mfu", "tokens_per_s", "step_ms", "tflops_per_device"}) m.set(name, widest);
  sink.step(m);
  const json line = json::parse(slurp(path));
  EXPECT_EQ(line["loss"], "nan");
  EXPECT_EQ(line["grad_norm"], "inf");
  EXPECT_EQ(line["lr"], "-inf");
}

TEST(JsonlSink, FullDiskIsAUserError) {
  JsonlSink sink("/dev/full", AppendFile::Start::keep);
  EXPECT_TRUE(contains(message_of<UserError>([&] { sink.step(sample_step(1)); }), "/dev/full"));
}

TEST(Log, PlainLinesGoToConsoleAndFile) {
  const TempFolder folder;
  const ConsoleFile console(folder);
  Log log({.console = console.file.get(), .terminal = {}, .columns = 0});
  EXPECT_FALSE(log.terminal());  // a file is none
  log.info("before {}", 1);
  log.open_file(folder / "log.txt");
  log.status("50 %");
  log.warn("careful: {}", "x");
  log.error("broken");
  log.file_only("quiet");
  log.clear_status();
  log.info("{}", std::string(5000, 'y'));
  EXPECT_EQ(console.text(), "before 1\nwarning: careful: x\nerror: broken\n" + std::string(5000, 'y') + "\n");
  EXPECT_EQ(slurp(folder / "log.txt"), "warning: careful: x\nerror: broken\nquiet\n" + std::string(5000, 'y') + "\n");
}

TEST(Log, StatusLineStaysBelowLinesAndFitsTheTerminal) {
  const TempFolder folder;
  const ConsoleFile console(folder);
  {
    Log log({.console = console.file.get(), .terminal = true, .columns = 10});
    log.open_file(folder / "log.txt");
    log.status("\x1b[36mäöü456789012");
    log.info("line");
    log.clear_status();
    log.info("last");
    log.status("x");
  }
  const std::string status = "\r\x1b[K\x1b[36mäöü456789\x1b[0m";
  EXPECT_EQ(console.text(), status + "\r\x1b[Kline\n" + status + "\r\x1b[K" + "last\n" + "\r\x1b[Kx\x1b[0m\r\x1b[K");
  EXPECT_EQ(slurp(folder / "log.txt"), "line\nlast\n");
}

TEST(Log, WhatCannotBeWrittenIsAUserError) {
  const TempFolder folder;
  const FileDescriptor full(::open("/dev/full", O_WRONLY));
  Log to_full({.console = full.get(), .terminal = {}, .columns = 0});
  EXPECT_TRUE(contains(message_of<UserError>([&] { to_full.info("x"); }), "the console"));
  Log log({.console = -1, .terminal = {}, .columns = 0});
  log.info("no console is fine");
  log.open_file("/dev/full", AppendFile::Start::keep);
  EXPECT_TRUE(contains(message_of<UserError>([&] { log.info("x"); }), "/dev/full"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { log.open_file(folder / "none/log.txt"); }), "none/log.txt"));
}

TEST(Log, GoesOnInItsFileWhenTheConsoleIsClosed) {
  std::signal(SIGPIPE, SIG_IGN);
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  FileDescriptor reading(ends[0]);
  const FileDescriptor writing(ends[1]);
  const TempFolder folder;
  Log log({.console = writing.get(), .terminal = {}, .columns = 0});
  log.open_file(folder / "log.txt");
  log.info("first");
  reading.close();
  log.info("second");
  log.info("third");
  EXPECT_EQ(read_whole_file(folder / "log.txt", 1000),
            "first\nsecond\ncannot write to the console: Broken pipe; from here on this file alone goes on\nthird\n");
}

TEST(ConsoleSink, PlainLinesRespectTheInterval) {
  const TempFolder folder;
  const ConsoleFile console(folder);
  Log log({.console = console.file.get(), .terminal = {}, .columns = 0});
  ConsoleSink sink(log, {.total_steps = 25, .log_interval = 10});
  for (std::int64_t step = 1; step <= 25; ++step) sink.step(sample_step(step));
  sink.eval({.step = 25, .eval_loss = std::log(2.0), .tokens = 0});
  const auto line = [](int step) {
    return fmt::format(
        "step {:2}/25 | loss 5.5452 | grad norm 1.250 | lr 3.00e-04 | 51.5 ms | 39.8k tokens/s | 83.4 GFLOP/s\n", step);
  };
  EXPECT_EQ(console.text(),
            line(1) + line(10) + line(20) + line(25) + "eval at step 25 | loss 0.6931 | perplexity 2\n");
}

TEST(ConsoleSink, BarShowsProgressSpeedAndTimeLeft) {
  const TempFolder folder;
  const ConsoleFile console(folder);
  Log log({.console = console.file.get(), .terminal = true, .columns = 200});
  ConsoleSink sink(log, {.total_steps = 20000, .log_interval = 20000});
  sink.step(sample_step(10000)
                .set("step_ms", 730.5)
                .set("tflops_per_device", 412.3)
                .set("mfu", 0.4169)
                .set("tokens_per_s", 1234567.0));
  const std::string text = console.text();
  std::string half;
  for (int i = 0; i < 12; ++i) half += "█";
  half += "\x1b[90m";
  for (int i = 0; i < 12; ++i) half += "·";
  EXPECT_TRUE(contains(text, half)) << text;
  EXPECT_TRUE(contains(text, "10000/20000")) << text;
  EXPECT_TRUE(contains(text, "1.23M tokens/s | 412.3 TFLOP/s | MFU 41.7 % | ETA 02:01:45")) << text;
  sink.finish();
  EXPECT_TRUE(console.text().ends_with("\r\x1b[K"));
}

TEST(ConsoleSink, ShowsMetricsThatSayHow) {
  const TempFolder folder;
  const ConsoleFile console(folder);
  Log log({.console = console.file.get(), .terminal = {}, .columns = 0});
  ConsoleSink sink(log, {.total_steps = 1, .log_interval = 1});
  sink.step(sample_step(1)
                .set("skipped", true)
                .add_before_skipped("loss_scale", 1024.0)
                .add("mtp_loss", 3.25, "mtp loss {:.4f}")
                .add("z_loss", 0.5)
                .add("spread", 7.0, "spread {:.1f}"));
  EXPECT_EQ(console.text(),
            "step 1/1 | loss 5.5452 | grad norm 1.250 | lr 3.00e-04 | 51.5 ms | 39.8k tokens/s | 83.4 GFLOP/s"
            " | mtp loss 3.2500 | spread 7.0 | loss scale 1024 | 1 skipped\n");
}

TEST(Metrics, AStepAllocatesNothing) {
  const TempFolder folder;
  const ConsoleFile console(folder);
  Log log({.console = console.file.get(), .terminal = true, .columns = 120});
  log.open_file(folder / "log.txt");
  JsonlSink jsonl(folder / "m.jsonl", AppendFile::Start::empty);
  ConsoleSink bar(log, {.total_steps = 100, .log_interval = 1});
  ASSERT_GT(news_during([] { std::string(100, 'x').swap(*std::make_unique<std::string>()); }), 0);  // the counter works
  EXPECT_EQ(news_during([&] {
              for (std::int64_t step = 1; step <= 100; ++step) {
                jsonl.step(sample_step(step));
                bar.step(sample_step(step));
                bar.eval({.step = step, .eval_loss = 3, .tokens = 0});
              }
            }),
            0);
}

}  // namespace
}  // namespace tera::test
