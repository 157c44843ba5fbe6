#include <cstdio>
#include <memory>

#include "apps/commands.h"
#include "apps/run_options.h"
#include "tera/train/bench.h"

namespace tera {
namespace {

struct StepOptions : RunOptions {
  BenchOptions bench;
};

}  // namespace

void add_bench_command(CLI::App& app) {
  auto options = std::make_shared<StepOptions>();
  CLI::App* bench = app.add_subcommand("bench", "measure speed")->require_subcommand(1);
  CLI::App* command = bench->add_subcommand("step", "timed training steps on mock data");
  options->add_to(*command);
  command->add_option("--steps", options->bench.steps, "steps in all; 0: train.train_iters, or 10")
      ->capture_default_str();
  command->add_option("--warmup", options->bench.warmup, "the first of them, which do not count")
      ->capture_default_str();
  command->add_flag("--json", options->bench.json, "as one line of JSON");
  command->add_flag("--profile", options->bench.profile, "also where the time of a step goes");
  command->add_option("--kernel-choices", options->bench.kernel_choices,
                      "file that keeps what a GPU chose by timing, to be read the next time");
  command->callback(
      [options] { std::fputs(bench_step(options->load(Purpose::inspect), options->bench).c_str(), stdout); });
}

}  // namespace tera
