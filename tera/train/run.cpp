// `tera train`: the inputs, the output and the files of a run.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/hash.h"
#include "tera/base/machine.h"
#include "tera/base/signals.h"
#include "tera/base/utf8.h"
#include "tera/comm/agree.h"
#include "tera/data/dataset_hash.h"
#include "tera/hf/hf_export.h"
#include "tera/hf/hf_folder.h"
#include "tera/models/family_names.h"
#include "tera/pipeline/check.h"
#include "tera/plan/plan_table.h"
#include "tera/setup/describe.h"
#include "tera/tokenizer/make_tokenizer.h"
#include "tera/train/config_changes.h"
#include "tera/train/continue_run.h"
#include "tera/train/resume.h"
#include "tera/train/save.h"
#include "tera/train/shared_memory.h"
#include "tera/train/sinks/loss_plot.h"
#include "tera/train/sinks/make_sinks.h"
#include "tera/train/trainer.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

// Creates a folder before training, so that hours of it are not lost because the results cannot be written.
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

// A file that an earlier run left is kept under another name, metrics.jsonl.1 and so on.
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

// A hash that is equal on ranks with the same run: without the keys that each machine decides for itself.
std::uint64_t config_hash(Setup setup) {
  setup.config.dist.threads = 0;
  setup.config.dist.device = DeviceChoice::automatic;
  return hash_text(resolved_yaml(setup));
}

// "8 ranks: tp 2 x pp 2 x dp 2, sequence parallel, 1f1b (11 % of the time waiting), optim_grads"
std::string describe_layout(const Setup& setup) {
  const ParallelShape& parallel = setup.parallel;
  std::string text = fmt::format("{} ranks: tp {}", parallel.mesh.world, parallel.mesh.tp);
  if (parallel.mesh.cp > 1) text += fmt::format(" x {}", describe_context(parallel));
  text += fmt::format(" x pp {} x dp {}", parallel.mesh.pp, parallel.dp);
  if (parallel.sequence_parallel) text += ", sequence parallel";
  if (setup.model.moe) text += fmt::format(", experts {}", describe_experts(parallel.mesh));
  if (parallel.mesh.ep > 1) text += fmt::format(" ({})", name_of(setup.model.moe->dispatcher));
  if (parallel.mesh.pp > 1) text += fmt::format(", {}", name_of(parallel.schedule));
  if (parallel.chunks > 1) text += fmt::format(" with {} chunks a rank", parallel.chunks);
  if (parallel.mesh.pp > 1)
    text += fmt::format(" ({:.0f} % of the time waiting)", 100 * check(training_schedule(setup)).bubble);
  if (parallel.replicas() > 1 && parallel.sharding != Sharding::no_shard)
    text += fmt::format(", {}", name_of(parallel.sharding));
  return text;
}

// mpirun gives its first process a pseudo-terminal, whatever its own output is.
std::optional<bool> can_redraw(const Launch& launch) {
  return launch.kind == LaunchKind::mpi ? std::optional(false) : std::nullopt;
}

Backend make_restored_backend(const Setup& setup, const StartPoint& start, int rank, int local_rank) {
  restore_kernel_choices(start, setup.run_dir, rank);
  return make_backend(setup, rank, local_rank);
}

// Whether keys of checkpoint are given but not checkpoint.save.
bool saves_nothing_though_asked(const CheckpointConfig& config) {
  return config.save.empty() && (config.save_interval != 0 || config.async_save || config.keep_last != 0);
}

// The input of all ranks, made before they start.
struct Task {
  std::string config;                        // YAML, as it will be stored with checkpoints
  std::shared_ptr<CheckpointFolder> folder;  // checkpoint.save, if it exists, in the process of rank 0
  StartPoint start;
  Setup setup;  // as continue_run() resolved it
};

// One rank of a run. All ranks make the same calls; only rank 0 prints and writes files.
class RunOfRank {
 public:
  RunOfRank(const Launch& launch, const Task& task, RankHandle& rank_handle)
      : setup_(task.setup),
        start_(task.start),
        config_(task.config),
        folder_(rank_handle.rank() == 0 ? task.folder : nullptr),
        first_(rank_handle.rank() == 0),
        log_({.console = first_ ? STDOUT_FILENO : -1, .terminal = can_redraw(launch)}),
        backend_(make_restored_backend(setup_, start_, rank_handle.rank(), launch.local_rank)),
        world_(rank_handle.join(*backend_.ops)) {
    require_user(
        world_->size() == launch.world,
        "{} processes were started, but {} found each other: started by another MPI than the one that tera was "
        "built with (tera doctor names it)",
        launch.world, world_->size());
    report_faults(*world_, [&] { prepare(); });
  }

  void run(StopRequest& stop) {
    report_faults(*world_, [&] { train(stop); });
  }

 private:
  void prepare() {
    if (world_->size() > 1) {
      agree(*world_, *backend_.ops, *backend_.device, "the configuration", config_hash(setup_));
      agree(*world_, *backend_.ops, *backend_.device, "the checkpoint to start from", hash_of(start_));
      check_shared_memory_of_machine();
    }
    DataSource data = make_data_source(setup_);
    if (world_->size() > 1)
      agree(*world_, *backend_.ops, *backend_.device, "the training data",
            hash_some_samples(*data.train, setup_.batch.seq_length + 1));
    data_summary_ = data.summary;
    data_warnings_ = data.warnings;
    trainer_ = std::make_unique<Trainer>(setup_, backend_, std::move(data), log_, world_.get(), start_.progress);
    load_initial_weights();
    planned_bytes_ = gather_numbers(*world_, *backend_.ops, *backend_.device,
                                    static_cast<std::int64_t>(trainer_->step().memory().total()));
  }

  // The check runs once for each machine, on its lowest rank.
  void check_shared_memory_of_machine() {
    const std::vector<int> ranks = ranks_sharing_memory(
        world_->rank(),
        gather_numbers(*world_, *backend_.ops, *backend_.device, static_cast<std::int64_t>(memory_domain_id())));
    if (world_->rank() == ranks.front()) check_shared_memory(setup_, ranks, *backend_.device, *backend_.rules);
    world_->barrier();  // so that one error is reported: other ranks would fail on their own plans next
  }

  void train(StopRequest& stop) {
    if (first_) open_folders();
    try {
      open_saver();
      if (first_) stop.announce(what_stopping_does());
      trainer_->run(stop);
    } catch (const std::exception& error) {  // on the console the caller of run_ranks reports it
      log_.file_only("error: {}", error.what());
      throw;
    }
    if (first_) draw_losses(setup_.run_dir, setup_, log_);
  }

  // The lock of checkpoint.save comes first: a run that cannot take it must not touch the files of the run that holds
  // it.
  void open_folders() {
    const std::string& save = setup_.config.checkpoint.save;
    if (!save.empty() && !folder_) folder_ = std::make_shared<CheckpointFolder>(save);
    const fs::path folder = prepare_folder("run.dir", setup_.run_dir);
    // A resumed run appends to its files; otherwise those of an earlier run are kept under another name.
    const bool resumes = start_.resumed() && keep_metrics_up_to(folder / "metrics.jsonl", start_.progress.steps);
    if (!resumes)
      for (const char* name : {"log.txt", "metrics.jsonl"}) keep_earlier(folder / name);
    const auto start = resumes ? AppendFile::Start::keep : AppendFile::Start::empty;
    log_.open_file(folder / "log.txt", start);
    write_file_atomically(folder / "config.resolved.yaml", config_);
    describe();
    for (auto& sink : make_sinks(setup_, folder, start, log_)) trainer_->add_sink(std::move(sink));
  }

  void describe() {
    const BatchShape& batch = setup_.batch;
    const bool several = world_->size() > 1;
    log_.info("{} {}: {} layers, hidden {}, {:.2f} M parameters", setup_.config.run.name, setup_.model.family->name,
              setup_.model.num_layers, setup_.model.hidden,
              static_cast<double>(trainer_->step().count_parameters()) / 1e6);
    log_.info("device: {}{}, in {}; data: {}", backend_.name, several ? " on each rank" : "",
              name_of(setup_.config.mixed_precision.precision), data_summary_);
    for (const std::string& warning : setup_.warnings) log_.warn("{}", warning);
    for (const std::string& warning : data_warnings_) log_.warn("{}", warning);
    if (several) log_.info("{}", describe_layout(setup_));
    if (setup_.parallel.overlap_expert_comm && batch.num_microbatches < 2)
      log_.warn(
          "comm_overlap.overlap_moe_expert_parallel_comm: a step has one microbatch, and nothing to play beside it");
    const auto largest = std::max_element(planned_bytes_.begin(), planned_bytes_.end());
    log_.info("batch: {}{} x {} tokens in {} microbatch{}; memory: {} as planned{}",
              batch.rampup.start > 0 ? fmt::format("growing from {} to ", batch.rampup.start) : "", batch.global_batch,
              batch.seq_length, batch.num_microbatches, batch.num_microbatches == 1 ? "" : "es",
              format_bytes(static_cast<std::size_t>(*largest)),
              several ? fmt::format(" for rank {}, the largest", largest - planned_bytes_.begin()) : "");
    if (start_.checkpoint)
      log_.info("{} {}",
                start_.resumed() ? fmt::format("going on after step {} from", start_.progress.steps)
                                 : std::string("weights from"),
                start_.checkpoint->folder().string());
    else if (!setup_.config.model.hf.empty())
      log_.info("weights from {}", setup_.config.model.hf);
    for (const std::string& remark : start_.remarks) log_.info("{}", remark);
    for (const std::string& warning : start_.warnings) log_.warn("{}", warning);
    for (const std::string& warning : weight_warnings_) log_.warn("{}", warning);
    if (const std::string why = why_no_hf_form(setup_.model, setup_.config.model); !why.empty())
      log_.info("this model has no Hugging Face form: {}", why);
    if (saves_nothing_though_asked(setup_.config.checkpoint))
      log_.warn("nothing will be saved: other keys of checkpoint are given, but no checkpoint.save");
    if (const std::string remarks = backend_.ops->remarks(); !remarks.empty()) log_.info("{}", remarks);
  }

  // Overwrites the randomly initialized weights.
  void load_initial_weights() {
    const std::string& hf = setup_.config.model.hf;
    if (start_.checkpoint) return load_checkpoint();
    if (hf.empty()) return;
    const HfFolder folder(hf, families_with(setup_.model.family));
    ModelShape stored = setup_.model;
    stored.mtp_layers = std::min(stored.mtp_layers, folder.model().mtp_num_layers);
    report_mtp_layers(folder.model().mtp_num_layers);
    check_tensors(folder, stored);
    if (first_ && stored.mtp_layers > 0) folder.check_copies();
    load_weights(folder, trainer_->step().params(), *backend_.ops);
  }

  // A checkpoint may have more or fewer MTP layers than the run.
  void report_mtp_layers(std::int64_t stored) {
    constexpr std::string_view key = "model.mtp_num_layers";
    const std::int64_t wanted = setup_.model.mtp_layers;
    if (stored < wanted)
      weight_warnings_.push_back(
          fmt::format("{}={}: of these layers the weights have {}; the rest begins anew", key, wanted, stored));
    if (stored > wanted)
      weight_warnings_.push_back(
          fmt::format("layers that predict further ahead: the weights have {}, and the run takes {}; {}={} takes all",
                      stored, wanted, key, stored));
  }
  std::int64_t mtp_layers_in(const Checkpoint& checkpoint) const {
    const FamilyNames names = setup_.model.family->names();
    std::int64_t found = 0;
    while (checkpoint.find(mtp_mark(names, setup_.model.num_layers + found))) ++found;
    return found;
  }

  // Each file's checksum is verified by one rank.
  void load_checkpoint() {
    if (!start_.resumed()) report_mtp_layers(mtp_layers_in(*start_.checkpoint));
    std::optional<VerifyShard> verified;
    if (setup_.config.checkpoint.verify) verified = VerifyShard{.rank = world_->rank(), .ranks = world_->size()};
    try {
      trainer_->step().load_checkpoint(*start_.checkpoint, start_.take, verified);
    } catch (const DamagedCheckpoint& error) {
      fail_user("{}{}", error.what(), hint_for(start_, /*damaged=*/true));
    } catch (const ModelMismatch& error) {
      const std::string difference = model_difference(start_.checkpoint->config_yaml(), setup_.config);
      fail_user("{}{}", difference.empty() ? error.what() : error.with(difference), hint_for(start_));
    } catch (const UserError& error) {
      fail_user("{}{}", error.what(), hint_for(start_));
    }
    world_->barrier();  // all have read the checkpoint before a save may replace or remove it
  }

  std::string what_stopping_does() const {
    const char* const below = ::isatty(STDERR_FILENO) == 1 ? "\n" : "";  // ends the status line of the terminal
    return fmt::format("{}stopping after this step{}; Ctrl-C once more ends at once\n", below,
                       saver_ ? ", with a checkpoint" : "; nothing will be saved, as no checkpoint.save is given");
  }

  void open_saver() {
    if (setup_.config.checkpoint.save.empty()) return;
    saver_ = std::make_unique<CheckpointSaver>(
        setup_, trainer_->step(), CheckpointSaver::Ranks{.backend = backend_, .world = *world_, .log = log_},
        CheckpointSaver::Source{.config = config_,
                                .started_from = start_.started_from,
                                .saved_step = start_.resumed() && start_.is_in_save ? start_.progress.steps : -1,
                                .folder = folder_});
    trainer_->save_with(*saver_);
  }

  const Setup& setup_;
  const StartPoint& start_;
  const std::string& config_;
  std::shared_ptr<CheckpointFolder> folder_;  // checkpoint.save, on rank 0
  bool first_;
  Log log_;
  Backend backend_;
  std::unique_ptr<Comm> world_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<CheckpointSaver> saver_;
  std::string data_summary_;
  std::vector<std::string> data_warnings_, weight_warnings_;
  std::vector<std::int64_t> planned_bytes_;  // by rank
};

Task check_before_ranks_start(const Setup& setup, const Launch& launch) {
  const std::string written = resolved_yaml(setup);
  require_user(valid_utf8_prefix(written) == written.size(), "the config is not UTF-8 text, and could not be stored");
  stage_layout(setup);  // refuses layers that cannot be placed
  if (launch.rank == 0) check_writable("run.dir", setup.run_dir);
  const std::string& save = setup.config.checkpoint.save;
  std::error_code ignored;
  std::shared_ptr<CheckpointFolder> folder;  // holds the lock: from here on no other run changes it
  if (launch.rank == 0 && !save.empty() && fs::is_directory(save, ignored))
    folder = std::make_shared<CheckpointFolder>(save);
  StartPoint start = find_start(setup);
  Setup continued = continue_run(setup, start);
  std::string config = config_to_store(continued);
  return {std::move(config), std::move(folder), std::move(start), std::move(continued)};
}

}  // namespace

void train(const Setup& setup, const Launch& launch) {
  StopRequest stop;  // before any thread is started; until the first step Ctrl-C ends the program as usual
  const Task task = prepare_ranks(launch, [&] { return check_before_ranks_start(setup, launch); });
  run_ranks(launch, setup.parallel.timeout_seconds,
            [&](RankHandle& rank_handle) { RunOfRank(launch, task, rank_handle).run(stop); });
}

}  // namespace tera
