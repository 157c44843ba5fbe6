#include "tera/train/resume.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>

#include "tera/base/error.h"
#include "tera/base/hash.h"
#include "tera/checkpoint/checkpoint_folder.h"
#include "tera/train/backend.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_choices_bytes = std::size_t{16} << 20;

// Whether `path` is the folder, or lies in it.
bool is_in(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  return fs::equivalent(path, folder, error) || fs::equivalent(path / "..", folder, error);
}

// Position in the data and dropout are functions of the seed.
void check_seed(const StartPoint& start, std::int64_t seed) {
  const std::int64_t stored = start.checkpoint->source().seed;
  require_user(stored == seed,
               "train.seed={}, but {} was trained with train.seed={}, and samples would come in another order; use "
               "that, or take the weights alone with checkpoint.finetune=true{}",
               seed, start.checkpoint->folder().string(), stored, hint_for(start));
}

// The step of a line of metrics: {"step":12,... ; negative where there is none.
std::int64_t step_of(std::string_view line) {
  constexpr std::string_view key = "\"step\":";
  const std::size_t at = line.find(key);
  std::int64_t step = -1;
  if (at != std::string_view::npos) std::from_chars(line.data() + at + key.size(), line.data() + line.size(), step);
  return step;
}

}  // namespace

StartPoint find_start(const Setup& setup) {
  const CheckpointConfig& config = setup.config.checkpoint;
  require_user(!config.finetune || !config.load.empty(),
               "checkpoint.finetune=true takes the weights of checkpoint.load, which is not given");
  StartPoint start;
  std::error_code ignored;
  const bool chosen = !config.load.empty() && !config.save.empty() && is_in(config.load, config.save);
  if (!config.save.empty() && !chosen && fs::is_directory(config.save, ignored))
    if (const auto newest = newest_checkpoint(config.save)) start.checkpoint.emplace(*newest);
  start.is_in_save = chosen || start.checkpoint.has_value();
  if (!start.checkpoint && !config.load.empty()) {
    start.checkpoint.emplace(config.load);
    if (config.finetune) start.take = Checkpoint::Take::weights;
  }
  if (!start.resumed()) return start;
  check_seed(start, setup.config.train.seed);
  start.progress = {.steps = start.checkpoint->step(), .consumed = start.checkpoint->source().consumed_samples};
  return start;
}

std::string hint_for(const StartPoint& start) {
  if (!start.is_in_save) return {};
  return "; the run goes on from it because it is in checkpoint.save: another folder there starts anew";
}

std::uint64_t hash_of(const StartPoint& start) {
  if (!start.checkpoint) return 0;
  return hash_text(fmt::format("{} {} {}", start.checkpoint->folder().filename().string(), start.progress.steps,
                               static_cast<int>(start.take)));
}

void restore_kernel_choices(const StartPoint& start, const fs::path& run_dir, int rank) {
  if (!start.resumed()) return;
  const std::string name = kernel_choices_name(rank);
  const fs::path from = start.checkpoint->folder() / name, to = run_dir / name;
  if (!path_exists(from) || path_exists(to)) return;
  std::error_code error;
  fs::create_directories(run_dir, error);
  require_user(!error, "run.dir={}: {}", run_dir.string(), error.message());
  write_file_atomically(to, read_whole_file(from, max_choices_bytes));
}

bool keep_metrics_up_to(const fs::path& file, std::int64_t step) {
  if (!path_exists(file)) return false;
  std::ifstream in(file);
  std::string kept;
  bool dropped = false;
  for (std::string line; std::getline(in, line);) {
    const bool whole = !in.eof();  // the last line of a run that was killed may have no end
    if (whole && step_of(line) <= step)
      kept += line + "\n";
    else
      dropped = true;
  }
  if (dropped) write_file_atomically(file, kept);
  return true;
}

}  // namespace tera
