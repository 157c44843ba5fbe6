#include <cstdio>
#include <memory>

#include "apps/commands.h"
#include "apps/print_warnings.h"
#include "apps/run_options.h"
#include "tera/base/error.h"
#include "tera/plan/plan_table.h"

namespace tera {
namespace {

constexpr int does_not_fit = 3;  // exit status, neither a mistake nor a fault; the plan is printed

struct PlanOptions : RunOptions {
  std::optional<int> world;
  std::optional<double> memory;  // GiB
  bool json = false;

  std::optional<double> device_bytes() const {
    if (!memory) return {};
    constexpr double max_gib = 1 << 30;
    require_user(*memory > 0 && *memory <= max_gib, "--memory {}: must be more than 0 and at most {} GiB", *memory,
                 max_gib);
    return *memory * (1 << 30);
  }
};

// A plan made on a laptop for a cluster is most likely meant for GPUs.
void warn_if_not_for_gpus(const PlanOptions& options, const DistConfig& written, const DistConfig& resolved) {
  if (written.device != DeviceChoice::automatic || resolved.device != DeviceChoice::cpu || options.json) return;
  if (!options.memory && options.world.value_or(1) == 1) return;
  std::fputs("warning: planned for a CPU: dist.device=auto finds no GPU here; dist.device=cuda plans for GPUs\n",
             stderr);
}

Setup load_world(const PlanOptions& options) {
  const LoadedConfig loaded = load_config(options.config, options.overrides, find_stored_run);
  const RunConfig resolved = resolve_auto(loaded.config);
  warn_if_not_for_gpus(options, loaded.config.dist, resolved.dist);
  Setup setup = resolve(resolved, Purpose::plan, &loaded.origins, options.world.value_or(smallest_world(resolved)));
  print_warnings(setup);
  return setup;
}

void print_plan(const PlanOptions& options) {
  const std::optional<double> device_bytes = options.device_bytes();
  const Setup setup = load_world(options);
  const WorldPlan plan = plan_world(setup, *make_workspace_rules(setup));
  const std::string text = options.json ? plan_json(setup, plan, device_bytes) : plan_table(setup, plan, device_bytes);
  std::fputs(text.c_str(), stdout);
  if (device_bytes && !fits(plan, usable_memory(setup, *device_bytes))) throw AlreadyReported(does_not_fit);
}

}  // namespace

void add_plan_command(Command app) {
  auto options = std::make_shared<PlanOptions>();
  Command command = app.add_subcommand("plan", "rehearse a training step: exact bytes by what they are for");
  options->add_to(command);
  command.add_option("--world", options->world, "ranks of the run; without it, as few as the layout needs")
      .type_name("N");
  command
      .add_option("--memory", options->memory,
                  "of each rank's device, 139 for an H200: say which stages fit, and what would need less; exit status "
                  "3 if not all do")
      .type_name("GIB");
  command.add_flag("--json", options->json, "as JSON");
  command.callback([options] { print_plan(*options); });
}

}  // namespace tera
