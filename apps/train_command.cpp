#include <memory>

#include "apps/commands.h"
#include "apps/run_options.h"
#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/setup/describe.h"
#include "tera/train/trainer.h"

namespace tera {
namespace {

// The quickstart example's data is generated, not part of the repository.
void check_example(const TokenizerConfig& tokenizer) {
  const std::string& path = tokenizer.tokenizer_model;
  if (path == "runs/quickstart/data/tokenizer.json" && !path_exists(path))
    fail_user("{}: there is no such file here; `make quickstart` in the project's folder makes it, and the data", path);
}

Setup load(const RunOptions& options, const Launch& launch) {
  Setup setup = options.load(Purpose::train, launch);
  check_example(setup.config.tokenizer);
  return setup;
}

void train_as_launched(const RunOptions& options) {
  const Launch launch = detect_launch(options.ranks);
  train(prepare_ranks(launch, [&] { return load(options, launch); }), launch);
}

}  // namespace

void add_train_command(Command app) {
  auto options = std::make_shared<RunOptions>();
  Command command = app.add_subcommand("train", "train a model; everything it writes goes to run.dir");
  options->add_to(command);
  options->add_ranks_to(command);
  command.footer([] { return "\nKeys of the config:\n" + config_help(); });
  command.callback([options] { train_as_launched(*options); });
}

}  // namespace tera
