#include <memory>

#include "apps/commands.h"
#include "apps/run_options.h"
#include "tera/config/describe.h"
#include "tera/train/trainer.h"

namespace tera {
namespace {

void train_as_launched(const RunOptions& options) {
  const Launch launch = detect_launch(options.ranks);
  train(prepare_ranks(launch, [&] { return options.load(Purpose::train, launch); }), launch);
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("train", "train a model; everything it writes goes to run.dir");
  options->add_to(*command);
  options->add_ranks_to(*command);
  command->footer([] { return "\nKeys of the config:\n" + config_help(); });
  command->callback([options] { train_as_launched(*options); });
}

}  // namespace tera
