#include <fmt/core.h>

#include <cstdio>
#include <memory>

#include "apps/choice.h"
#include "apps/commands.h"
#include "apps/run_options.h"
#include "tera/base/error.h"
#include "tera/bench/bench.h"
#include "tera/bench/bench_ops.h"

namespace tera {
namespace {

struct StepOptions : RunOptions {
  BenchOptions bench;
};

struct OpsOptions {
  BenchOpsOptions bench;
  std::string device = "auto", precision = "auto";
};

void print_remarks(const std::string& remarks) { std::fputs(remarks.c_str(), stderr); }

void add_step_command(Command bench) {
  auto options = std::make_shared<StepOptions>();
  Command command = bench.add_subcommand("step", "timed training steps on mock data");
  options->add_to(command);
  options->add_ranks_to(command);
  command.add_option("--steps", options->bench.steps, "steps in all; 0: train.train_iters, or 10")
      .capture_default_str();
  command.add_option("--warmup", options->bench.warmup, "the first of them, which do not count").capture_default_str();
  command.add_flag("--json", options->bench.json, "as one line of JSON");
  command.add_flag("--profile", options->bench.profile, "also where the time of a step of the first rank goes");
  command.add_option("--trace", options->bench.trace,
                     "with --profile: file for every call of that step, for ui.perfetto.dev");
  command.add_option("--kernel-choices", options->bench.kernel_choices,
                     "file that keeps what a GPU chose by timing, to be read the next time");
  options->bench.report = print_remarks;
  command.callback([options] {
    const Launch launch = detect_launch(options->ranks);
    const Setup setup = prepare_ranks(launch, [&] { return options->load(Purpose::inspect, launch); });
    std::fputs(bench_step(setup, options->bench, launch).c_str(), stdout);
  });
}

void add_shape_options(Command command, BenchShapes& shapes) {
  const auto add = [&](const char* name, std::int64_t& value, const char* meaning) {
    command.add_option(name, value, meaning).range(std::int64_t{1}, std::int64_t{1} << 40);
  };
  add("--tokens", shapes.tokens, "rows of a microbatch");
  add("--sequence", shapes.sequence, "tokens of one sequence");
  add("--hidden", shapes.hidden, "channels between blocks");
  add("--ffn", shapes.ffn, "channels inside the feed-forward block");
  add("--vocab", shapes.vocab, "rows of the embedding");
  add("--heads", shapes.heads, "heads of queries");
  add("--kv-heads", shapes.kv_heads, "heads of keys and values");
  add("--head-size", shapes.head_size, "channels of a head");
  add("--parameters", shapes.parameters, "that the optimizer updates at once");
}

void add_ops_command(Command bench) {
  auto options = std::make_shared<OpsOptions>();
  Command command = bench.add_subcommand("ops", "each op alone, at the shapes of one layer");
  command.add_option("--device", options->device, "auto, cpu or cuda").capture_default_str();
  command.add_option("--threads", options->bench.dist.threads, "of a CPU; 0: all cores")
      .range(std::int64_t{0}, std::int64_t{1024});
  command.add_option("--precision", options->precision, "fp32, bf16 or fp16; auto: bf16 on a GPU")
      .capture_default_str();
  add_shape_options(command, options->bench.shapes);
  command.add_option("--only", options->bench.only, "part of the names of the ops to time");
  command.add_option("--ms", options->bench.milliseconds, "to spend on each op; 0: what suits the device")
      .range(0.0, 1e6);
  command.add_option("--kernel-choices", options->bench.kernel_choices,
                     "file that keeps what a GPU chose by timing, to be read the next time");
  command.add_flag("--json", options->bench.json, "as one line of JSON");
  options->bench.report = print_remarks;
  command.callback([options] {
    options->bench.dist.device = parse_choice<DeviceChoice>("--device", options->device);
    options->bench.precision = parse_choice<Precision>("--precision", options->precision);
    std::fputs(bench_ops(options->bench).c_str(), stdout);
  });
}

}  // namespace

void add_bench_command(Command app) {
  Command bench = app.add_subcommand("bench", "measure speed");
  bench.require_subcommand();
  add_step_command(bench);
  add_ops_command(bench);
}

}  // namespace tera
