#include "tera/train/save.h"

#include <fmt/format.h>

#include "tera/checkpoint/hf_files.h"
#include "tera/tokenizer/make_tokenizer.h"
#include "tera/train/trainer.h"

namespace tera {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// What came with the weights from a Hugging Face folder, for an export; the tokenizer's files; and a GPU's choices of
// kernels, which belong to the bits of a run.
std::vector<std::filesystem::path> carried_files(const Setup& setup) {
  std::vector<std::filesystem::path> files;
  const std::filesystem::path hf = setup.config.model.hf;
  if (!hf.empty()) files = hf_carried_files(hf);
  if (!hf.empty()) files.push_back(hf / "config.json");
  for (const std::filesystem::path& file : tokenizer_files(setup.config.tokenizer.options())) {
    const auto same_name = [&](const std::filesystem::path& other) { return other.filename() == file.filename(); };
    std::erase_if(files, same_name);  // the run's own
    files.push_back(file);
  }
  for (int rank = 0; rank < setup.parallel.mesh.world; ++rank)
    files.push_back(std::filesystem::path(setup.run_dir) / kernel_choices_name(rank));
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
      writer_(
          {.root = setup.config.checkpoint.save,
           .async = async_,
           .keep_last = setup.config.checkpoint.keep_last,
           .beside = carried_files(setup),
           .folder = std::move(source.folder),
           .saved_step = source.saved_step,
           .durable = [this](std::int64_t saved, const std::filesystem::path& folder) { tell_durable(saved, folder); }},
          {.world = ranks.world, .ops = *ranks.backend.ops, .device = *ranks.backend.device, .replica = step.replica()},
          step.state()) {}

void CheckpointSaver::save(const Progress& progress, std::int64_t updates) {
  writer_.finish();  // so that the time below is of this one
  begin_ = Clock::now();
  last_step_ = progress.steps;
  writer_.save({.step = progress.steps,
                .config_yaml = config_,
                .consumed_samples = progress.consumed,
                .updates = updates,
                .seed = seed_,
                .started_from = started_from_});
  if (async_)
    log_.info("saving step {} in the background; steps waited {:.0f} ms", last_step_, milliseconds_since(begin_));
}

void CheckpointSaver::tell_durable(std::int64_t step, const std::filesystem::path& folder) {
  log_.info("durable at step {}: saved {} in {:.2f} s", step, folder.string(), milliseconds_since(begin_) / 1e3);
}

}  // namespace tera
