#include "tera/train/resume.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "tera/base/error.h"
#include "tera/base/hash.h"
#include "tera/base/joined.h"
#include "tera/base/utf8.h"
#include "tera/checkpoint/checkpoint_search.h"
#include "tera/train/backend.h"
#include "tera/train/same_tokenizer.h"
#include "tera/train/stored_run.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_choices_bytes = std::size_t{16} << 20;

// Where checkpoint.load lies: not given or checkpoint.save itself, one of its checkpoints, or elsewhere.
enum class Relation : std::uint8_t { none, inside, apart };

fs::path without_slash(const fs::path& path) {
  return path.has_filename() || !path.has_relative_path() ? path : path.parent_path();
}

Relation relate(const CheckpointConfig& config) {
  require_user(!config.finetune || !config.load.empty(),
               "checkpoint.finetune=true takes the weights of checkpoint.load, which is not given");
  if (config.load.empty()) return Relation::none;
  const fs::path load = without_slash(config.load), save = without_slash(config.save);
  std::error_code error;
  const auto is_save = [&](const fs::path& path) {
    return !save.empty() && fs::equivalent(path.empty() ? fs::path(".") : path, save, error);
  };
  // A link to a folder of checkpoint.save counts as inside: load / ".." follows it.
  const bool same = load.lexically_normal() == save.lexically_normal() || is_save(load),
             inside = has_step_name(load) && (is_save(load.parent_path()) || is_save(load / ".."));
  require_user(!config.finetune || !(same || inside),
               "checkpoint.finetune=true with a checkpoint.load in checkpoint.save={}: a run that takes weights alone "
               "begins anew, and needs a folder of its own there",
               config.save);
  if (same) return Relation::none;
  require_user(fs::is_directory(load, error), "checkpoint.load={}: there is no such folder", config.load);
  return inside ? Relation::inside : Relation::apart;
}

// The path as UTF-8 text, which a manifest can store; empty if it is not UTF-8.
std::string path_text(const fs::path& path) {
  const std::string text = path.string();
  return valid_utf8_prefix(text) == text.size() ? text : std::string();
}

// checkpoint.load names a checkpoint in checkpoint.save: the run goes back to it. But where the newest checkpoint's run
// was itself started from that one, the same command was started again, and the newest is resumed: true.
bool choose_inside(StartPoint& start, const std::string& load, const NewestCheckpoint& newest) {
  Checkpoint chosen(load);
  const std::string name = path_text(fs::canonical(chosen.folder()).filename());
  if (newest.folder && !name.empty()) {
    const Checkpoint last(*newest.folder);
    if (last.source().started_from == name && last.step() > chosen.step()) {
      start.remarks.push_back(
          fmt::format("checkpoint.load={} is where this run was begun; it goes on from what it saved since", load));
      return true;
    }
  }
  start.checkpoint.emplace(std::move(chosen));
  start.is_in_save = true;
  start.started_from = name;
  return false;
}

void resume_from(StartPoint& start, const NewestCheckpoint& newest) {
  start.checkpoint.emplace(*newest.folder);
  start.is_in_save = true;
  start.started_from = start.checkpoint->source().started_from;
  if (!newest.passed_over.empty())
    start.warnings.push_back(fmt::format("passed over as not complete: {}; the newest that is complete is {}",
                                         joined(newest.passed_over, ", "), newest.folder->string()));
}

// Older checkpoints have no token count: then all samples were as long as the stored config says.
std::int64_t consumed_tokens_of(const Checkpoint& checkpoint) {
  const CheckpointSource& source = checkpoint.source();
  if (source.consumed_tokens) return *source.consumed_tokens;
  const std::int64_t length = written_config(checkpoint).config.train.seq_length;
  std::int64_t tokens = 0;
  require_user(length > 0 && !__builtin_mul_overflow(source.consumed_samples, length, &tokens),
               "{}: 'consumed_samples' is {}, of train.seq_length={} in its config: their tokens cannot be counted",
               (checkpoint.folder() / CheckpointNames::manifest).string(), source.consumed_samples, length);
  return tokens;
}

// Tokens and steps of the full run must fit 64 bits.
void check_progress(const StartPoint& start, const BatchShape& batch) {
  const std::string where = (start.checkpoint->folder() / CheckpointNames::manifest).string();
  const Progress& progress = start.progress;
  const double to_come = static_cast<double>(batch.train_iters) * static_cast<double>(batch.global_batch);
  const double length = static_cast<double>(batch.seq_length);
  require_user((static_cast<double>(progress.consumed) + to_come) * length <= 0x1p61,
               "{}: 'consumed_samples' is {}, and with what is left to train there are more tokens than can be counted",
               where, progress.consumed);
  require_user(static_cast<double>(progress.tokens) + to_come * length <= 0x1p61,
               "{}: 'consumed_tokens' is {}, and with what is left to train there are more than can be counted", where,
               progress.tokens);
  require_user(static_cast<double>(progress.steps) <= 0x1p61, "{}: 'step' is {}, and more steps cannot be counted",
               where, progress.steps);
}

// How to load the weights alone: checkpoint.load must name the folder, and checkpoint.save must be another one.
std::string how_to_finetune(const StartPoint& start) {
  return fmt::format("take the weights alone: checkpoint.load={} and checkpoint.finetune=true{}",
                     start.checkpoint->folder().string(),
                     start.is_in_save ? ", with another folder as checkpoint.save" : "");
}

// Position in the data and dropout are functions of the seed.
void check_seed(const StartPoint& start, std::int64_t seed) {
  const std::int64_t stored = start.checkpoint->source().seed;
  require_user(stored == seed,
               "train.seed={}, but {} was trained with train.seed={}, and samples would come in another order; go "
               "on with that one, or {}",
               seed, start.checkpoint->folder().string(), stored, how_to_finetune(start));
}

// Ids would mean something else from here on, and the next checkpoint would carry the wrong tokenizer.
void check_tokenizer(const StartPoint& start, const RunConfig& config) {
  const std::string other = other_tokenizer(*start.checkpoint, config);
  require_user(other.empty(), "{}, which the model was trained with; go on with that one, or {}", other,
               how_to_finetune(start));
}

// Whether the checkpoint has untrained weights alone, as an import writes them: there is no run to resume.
bool has_only_weights(const Checkpoint& checkpoint) {
  const auto is_state =
      [](const auto& tensor) {  // the router's expert shares are stored with the weights, and zero before step 1
        return tensor.first.starts_with("optimizer.") && !tensor.first.starts_with("optimizer.expert_shares.");
      };
  return checkpoint.manifest().version > 1 && checkpoint.step() == 0 &&
         std::ranges::none_of(checkpoint.manifest().tensors, is_state);
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
  const Relation relation = relate(config);
  StartPoint start;
  NewestCheckpoint newest;
  std::error_code ignored;
  if (!config.save.empty() && fs::is_directory(config.save, ignored)) newest = find_newest(config.save);
  if (relation == Relation::inside && !choose_inside(start, config.load, newest)) newest = {};
  if (newest.folder) {
    resume_from(start, newest);
    if (relation == Relation::apart)
      start.remarks.push_back(fmt::format("checkpoint.load={} is not used: checkpoint.save has step {} already",
                                          config.load, start.checkpoint->step()));
  }
  require_user(newest.folder || newest.passed_over.empty(),
               "{}: none of its checkpoints is complete: {}; another folder as checkpoint.save starts anew",
               config.save, joined(newest.passed_over, ", "));
  if (!start.checkpoint && relation == Relation::apart) {
    start.checkpoint.emplace(config.load);
    start.started_from = path_text(fs::canonical(start.checkpoint->folder()));
    if (config.finetune) start.take = Checkpoint::Take::weights;
  }
  if (start.checkpoint && has_only_weights(*start.checkpoint)) start.take = Checkpoint::Take::weights;
  if (!start.resumed()) return start;
  check_seed(start, setup.config.train.seed);
  check_tokenizer(start, setup.config);
  const CheckpointSource& source = start.checkpoint->source();
  start.progress = {.steps = source.step,
                    .consumed = source.consumed_samples,
                    .skipped = source.skipped_samples,
                    .tokens = consumed_tokens_of(*start.checkpoint)};
  check_progress(start, setup.batch);
  return start;
}

std::string hint_for(const StartPoint& start, bool damaged) {
  const fs::path& folder = start.checkpoint->folder();
  const auto before = damaged ? complete_before(folder) : std::nullopt;
  std::string hint;
  if (before && start.started_from == before->filename().string())  // naming that one would resume the damaged one
    hint = fmt::format("; {} before it is complete: the run goes on from that once {} is removed", before->string(),
                       folder.string());
  else if (before)
    hint = fmt::format("; the one before it is complete: checkpoint.load={}", before->string());
  if (start.is_in_save)
    hint += "; the run goes on from it because it is in checkpoint.save: another folder there starts anew";
  return hint;
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
  if (!start.checkpoint->has_file(name) || path_exists(to)) return;
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
    const bool complete = !in.eof();  // the last line of a run that was killed may have no end
    if (complete && step_of(line) <= step)
      kept += line + "\n";
    else
      dropped = true;
  }
  if (dropped) write_file_atomically(file, kept);
  return true;
}

}  // namespace tera
