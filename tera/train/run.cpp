// `tera train`: what a run reads, shows and leaves behind.

#include <fmt/format.h>
#include <unistd.h>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/signals.h"
#include "tera/base/utf8.h"
#include "tera/checkpoint/checkpoint.h"
#include "tera/config/describe.h"
#include "tera/train/console.h"
#include "tera/train/loss_plot.h"
#include "tera/train/plan_table.h"
#include "tera/train/trainer.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

// Made before training, so that hours of it are not lost for want of a place to put them.
fs::path prepare_folder(std::string_view key, const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  require_user(!error, "{}={}: {}", key, folder.string(), error.message());
  require_user(::access(folder.c_str(), W_OK) == 0, "{}={}: cannot be written", key, folder.string());
  return folder;
}

// Whether the folder could be made, without making it: a plan that does not fit should leave nothing behind.
void check_writable(std::string_view key, fs::path folder) {
  const std::string asked = folder.string();
  while (!folder.empty() && !path_exists(folder)) folder = folder.parent_path();
  if (folder.empty()) folder = ".";
  require_user(::access(folder.c_str(), W_OK) == 0, "{}={}: {} cannot be written", key, asked, folder.string());
}

// What an earlier run left under this name is kept, as metrics.jsonl.1 and so on.
void keep_earlier(const fs::path& file) {
  if (!path_exists(file)) return;
  for (int i = 1;; ++i) {
    const fs::path kept = fmt::format("{}.{}", file.string(), i);
    if (path_exists(kept)) continue;
    rename_path(file, kept);
    return;
  }
}

void draw_losses(const fs::path& folder, const Setup& setup, Log& log) {
  LossCurves curves = read_loss_curves(folder / "metrics.jsonl");
  if (curves.train.size() < 2) return;
  curves.title = setup.config.run.name;
  write_file_atomically(folder / "loss.svg", loss_svg(curves));
  log.info("{}", loss_text(curves, {.columns = std::min(log.columns(), 100), .color = log.terminal()}));
  log.info("loss curve: {}", (folder / "loss.svg").string());
}

}  // namespace

void train(const Setup& setup) {
  StopRequest stop;  // before any thread is started; until the first step Ctrl-C ends the program as usual
  const std::string config = resolved_yaml(setup);
  require_user(valid_utf8_prefix(config) == config.size(), "the config is not UTF-8 text, and could not be stored");
  check_writable("run.dir", setup.run_dir);
  Log log;
  Backend backend = make_backend(setup);
  DataSource data = make_data_source(setup);
  const std::string summary = data.summary;
  Trainer trainer(setup, backend, std::move(data), log);

  const fs::path checkpoints = setup.config.checkpoint.save;
  if (!checkpoints.empty()) prepare_folder("checkpoint.save", checkpoints);
  const fs::path folder = prepare_folder("run.dir", setup.run_dir);
  for (const char* name : {"log.txt", "metrics.jsonl"}) keep_earlier(folder / name);
  log.open_file(folder / "log.txt");
  write_file_atomically(folder / "config.resolved.yaml", config);

  log.info("{} {}: {} layers, hidden {}, {:.2f} M parameters", setup.config.run.name, name_of(setup.model.arch),
           setup.model.num_layers, setup.model.hidden,
           static_cast<double>(trainer.step().params().count_elements()) / 1e6);
  log.info("device: {}; data: {}", backend.name, summary);
  log.info("batch: {} x {} tokens in {} microbatch{}; memory: {} as planned", setup.batch.global_batch,
           setup.batch.seq_length, setup.batch.num_microbatches, setup.batch.num_microbatches == 1 ? "" : "es",
           format_bytes(trainer.step().memory().total()));

  if (const std::string remarks = backend.ops->remarks(); !remarks.empty()) log.info("{}", remarks);
  trainer.add_sink(std::make_unique<JsonlSink>(folder / "metrics.jsonl", AppendFile::Start::empty));
  trainer.add_sink(std::make_unique<ConsoleSink>(
      log,
      ConsoleSink::Options{.total_steps = setup.batch.train_iters, .log_interval = setup.config.logger.log_interval}));
  trainer.run(stop);

  if (!checkpoints.empty()) {
    const auto saved = save_checkpoint(checkpoints, {.step = trainer.steps(), .config_yaml = config},
                                       trainer.step().params(), *backend.ops);
    log.info("saved {}", saved.string());
  }
  draw_losses(folder, setup, log);
}

}  // namespace tera
