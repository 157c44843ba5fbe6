#include <cstdio>
#include <memory>

#include "apps/commands.h"
#include "apps/run_options.h"
#include "tera/train/plan_table.h"

namespace tera {
namespace {

struct PlanOptions : RunOptions {
  bool json = false;
};

void print_plan(const PlanOptions& options) {
  const Setup setup = options.load(Purpose::inspect);
  TrainingStep step(setup);
  const MemoryPlan plan = step.plan(*make_workspace_rules(setup));
  std::fputs((options.json ? plan_json(setup, plan, step) : plan_table(setup, plan, step)).c_str(), stdout);
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "rehearse a training step: exact bytes by what they are for");
  options->add_to(*command);
  command->add_flag("--json", options->json, "as JSON");
  command->callback([options] { print_plan(*options); });
}

}  // namespace tera
