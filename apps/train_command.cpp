#include <memory>

#include "apps/commands.h"
#include "apps/run_options.h"
#include "tera/config/describe.h"
#include "tera/train/trainer.h"

namespace tera {

void add_train_command(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("train", "train a model; everything it writes goes to run.dir");
  options->add_to(*command);
  command->footer([] { return "\nKeys of the config:\n" + config_help(); });
  command->callback([options] { train(options->load(Purpose::train)); });
}

}  // namespace tera
