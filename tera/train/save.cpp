#include "tera/train/save.h"

#include <fmt/core.h>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/config/checkpoint_path.h"
#include "tera/hf/config/hf_tokenizer.h"
#include "tera/hf/hf_files.h"
#include "tera/tokenizer/make_tokenizer.h"
#include "tera/train/trainer.h"

namespace tera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// A file in a checkpoint may be removed during the run, so it is copied into the run's folder.
fs::path to_keep(const fs::path& file, const Setup& setup) {
  constexpr std::size_t max_bytes = std::size_t{1} << 30;
  if (!holds_checkpoints(file.parent_path())) return file;
  const fs::path folder = fs::path(setup.run_dir) / "carried";
  std::error_code error;
  fs::create_directories(folder, error);
  require_user(!error, "run.dir={}: {}", setup.run_dir, error.message());
  write_file_atomically(folder / file.filename(), read_whole_file(file, max_bytes));
  return folder / file.filename();
}

// Where the Hugging Face folder is gone, the checkpoint that the run resumed has its files.
HfFiles files_of_hf(const Setup& setup) {
  const CheckpointConfig& config = setup.config.checkpoint;
  if (path_exists(fs::path(setup.config.model.hf) / "config.json")) return HfFiles(fs::path(setup.config.model.hf));
  for (const std::string& folder : {config.save, config.load})
    if (!folder.empty() && holds_checkpoints(folder)) return HfFiles(Checkpoint(folder));
  return {};
}

// The files that checkpoints carry: those of the Hugging Face folder of the weights, for an export (only its
// config.json if the run has another tokenizer); the tokenizer's files; and a GPU's kernel choices, which decide the
// bits of a run.
std::vector<fs::path> carried_files(const Setup& setup) {
  std::vector<fs::path> files;
  if (!setup.config.model.hf.empty()) {
    const HfFiles hf = files_of_hf(setup);
    const bool all = !uses_custom_tokenizer(setup.config);
    for (const std::string& name : hf.names())
      if (all || name == "config.json") files.push_back(to_keep(hf.path(name), setup));
  }
  for (const fs::path& file : tokenizer_files(setup.config.tokenizer.options())) {
    const auto same_name = [&](const fs::path& other) { return other.filename() == file.filename(); };
    std::erase_if(files, same_name);  // the run's own tokenizer replaces it
    files.push_back(to_keep(file, setup));
  }
  for (int rank = 0; rank < setup.parallel.mesh.world; ++rank)
    files.push_back(fs::path(setup.run_dir) / kernel_choices_name(rank));
  return files;
}

}  // namespace

CheckpointSaver::CheckpointSaver(const Setup& setup, const TrainingStep& step, const Ranks& ranks, Source source)
    : log_(ranks.log),
      interval_(setup.config.checkpoint.save_interval),
      last_step_(source.saved_step),
      seed_(setup.config.train.seed),
      async_(setup.config.checkpoint.async_save),
      config_(std::move(source.config)),
      started_from_(std::move(source.started_from)),
      writer_({.root = setup.config.checkpoint.save,
               .async = async_,
               .keep_last = setup.config.checkpoint.keep_last,
               .extra_files = ranks.world.rank() == 0 ? carried_files(setup) : std::vector<fs::path>{},
               .folder = std::move(source.folder),
               .saved_step = source.saved_step,
               .durable = [this](std::int64_t saved,
                                 const std::filesystem::path& folder) { report_durable(saved, folder); }},
              {.world = ranks.world,
               .ops = *ranks.backend.ops,
               .device = *ranks.backend.device,
               .replicas = step.layout().replicas},
              step.state()) {}

void CheckpointSaver::save(const Progress& progress, const TrainingStep& step) {
  writer_.finish();  // so that begin_ is the time of this save
  begin_ = Clock::now();
  last_step_ = progress.steps;
  CheckpointSource source{.step = progress.steps,
                          .config_yaml = config_,
                          .consumed_samples = progress.consumed,
                          .consumed_tokens = progress.tokens,
                          .skipped_samples = progress.skipped,
                          .seed = seed_,
                          .started_from = started_from_};
  step.features().keep(source);
  writer_.save(source);
  if (async_)
    log_.info("saving step {} in the background; steps waited {:.0f} ms", last_step_, milliseconds_since(begin_));
}

void CheckpointSaver::report_durable(std::int64_t step, const std::filesystem::path& folder) {
  log_.info("durable at step {}: saved {} in {:.2f} s", step, folder.string(), milliseconds_since(begin_) / 1e3);
}

}  // namespace tera
