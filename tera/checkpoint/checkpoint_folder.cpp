#include "tera/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/statvfs.h>

#include <vector>

#include "tera/base/error.h"
#include "tera/checkpoint/checkpoint_search.h"

namespace tera {
namespace {

namespace fs = std::filesystem;
using Names = CheckpointNames;

// Locks the folder until the descriptor is closed or the process ends. There is no lock on file systems without locks.
// Other processes can query an OFD lock without acquiring it.
FileDescriptor acquire_lock(const fs::path& root) {
  const fs::path path = root / Names::lock;
  FileDescriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  require_user(static_cast<bool>(lock), "cannot open {}: {}", path.string(), std::generic_category().message(errno));
  struct flock request {};
  request.l_type = F_WRLCK;
  request.l_whence = SEEK_SET;
  if (::fcntl(lock.get(), F_OFD_SETLK, &request) != 0 && (errno == EAGAIN || errno == EACCES))
    fail_user("{}: another run is saving its checkpoints there; give each run a checkpoint.save of its own",
              root.string());
  return lock;
}

// Makes the folder and its parents; each new name is synced, so that it survives a power cut.
void make_folder(const fs::path& folder) {
  std::vector<fs::path> made;
  std::error_code error;
  for (fs::path each = folder; !each.empty() && !fs::exists(each, error); each = each.parent_path())
    made.push_back(each);
  fs::create_directories(folder, error);
  require_user(!error, "checkpoint.save={}: {}", folder.string(), error.message());
  for (const fs::path& each : made) sync_parent_folder(each);
}

double mebibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / 0x1p20; }

}  // namespace

fs::path CheckpointFolder::complete(const fs::path& root, std::int64_t step) { return step_folder(root, step); }

fs::path CheckpointFolder::in_progress(const fs::path& root, std::int64_t step) {
  return step_folder(root, step, Names::writing);
}

CheckpointFolder::CheckpointFolder(fs::path root) : root_(std::move(root)) {
  if (!root_.has_filename() && root_.has_relative_path()) root_ = root_.parent_path();  // "DIR/"
  make_folder(root_);
  lock_ = acquire_lock(root_);
}

void CheckpointFolder::recover() {
  const auto announced = named_step(root_, Names::next);
  std::set<std::int64_t> steps;
  for (const std::string_view suffix : {Names::writing, Names::old})
    for (const std::int64_t step : list_steps(root_, suffix)) steps.insert(step);
  for (const std::int64_t step : steps) recover(step, step == announced);
  std::error_code ignored;
  if (announced && is_complete(complete(root_, *announced)))
    name_as_latest();
  else
    fs::remove(root_ / Names::next, ignored);
  for (fs::directory_iterator it(root_, ignored), end; it != end; it.increment(ignored))
    if (it->path().filename().string().starts_with(fmt::format("{}.tmp-", Names::next))) fs::remove(*it, ignored);
}

// A complete checkpoint is moved to its final name, unless another of its step is there that it was not announced to
// replace.
void CheckpointFolder::recover(std::int64_t step, bool announced) {
  const fs::path folder = complete(root_, step), writing = in_progress(root_, step),
                 old_folder = step_folder(root_, step, Names::old);
  if (is_complete(writing) && (announced || !is_complete(folder))) move_into_place(step);
  std::error_code ignored;
  bool has_complete = is_complete(folder);
  if (!has_complete && is_complete(old_folder)) {
    fs::remove_all(writing, ignored);
    if (path_exists(folder)) rename_path(folder, writing);
    rename_path(old_folder, folder);
    has_complete = true;
  }
  // Without a complete one, even a seemingly damaged checkpoint is kept: the disk may recover.
  for (const fs::path& left : {writing, old_folder})
    if (has_complete || !path_exists(left / Names::manifest)) fs::remove_all(left, ignored);
}

// Moves the written folder to its final name; a folder that has this name is moved to .old first.
void CheckpointFolder::move_into_place(std::int64_t step) {
  const fs::path folder = complete(root_, step), writing = in_progress(root_, step),
                 old_folder = step_folder(root_, step, Names::old);
  try {
    std::error_code ignored;
    if (path_exists(folder)) {
      fs::remove_all(old_folder, ignored);  // left by an earlier crash; `writing` is complete
      rename_path(folder, old_folder);
    }
    try {
      rename_path(writing, folder);
    } catch (const UserError&) {
      if (path_exists(old_folder)) fs::rename(old_folder, folder, ignored);
      throw;
    }
    sync_parent_folder(folder);
  } catch (const UserError& error) {
    fail_user("{}; the new checkpoint is complete in {} and can be used from there", error.what(), writing.string());
  }
}

void CheckpointFolder::name_as_latest() {
  rename_path(root_ / Names::next, root_ / Names::latest);
  sync_parent_folder(root_ / Names::latest);
}

void CheckpointFolder::check_free_space(std::int64_t step, std::uint64_t bytes) const {
  struct statvfs info {};
  if (::statvfs(root_.c_str(), &info) != 0 || info.f_blocks == 0) return;  // the file system does not report free space
  const std::uint64_t available = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  require_user(bytes <= available,
               "{}: no space left for the checkpoint of step {}: it takes {:.1f} MiB, and {:.1f} MiB are free; "
               "checkpoint.keep_last removes old ones, one more than it keeps must fit",
               root_.string(), step, mebibytes(bytes), mebibytes(available));
}

void CheckpointFolder::begin(std::int64_t step) {
  recover(step, /*announced=*/false);
  const fs::path writing = in_progress(root_, step);
  std::error_code error;
  fs::remove_all(writing, error);
  if (!error) fs::create_directories(writing, error);
  require_user(!error, "cannot make the folder {}: {}", writing.string(), error.message());
}

void CheckpointFolder::publish(std::int64_t step, const std::string& manifest, std::int64_t keep_last) {
  const fs::path folder = complete(root_, step), writing = in_progress(root_, step);
  sync_parent_folder(writing / Names::manifest);
  write_file_atomically(writing / Names::manifest, manifest);
  write_file_atomically(root_ / Names::next, folder.filename().string() + "\n");
  move_into_place(step);
  name_as_latest();
  known_.insert(step);
  std::error_code ignored;
  fs::remove_all(step_folder(root_, step, Names::old), ignored);
  remove_older(step, keep_last);
}

// Checkpoints of later steps, left by a run that went back to an earlier step, are kept.
void CheckpointFolder::remove_older(std::int64_t step, std::int64_t keep_last) {
  if (keep_last == 0) return;
  std::error_code ignored;
  std::int64_t kept = 0;
  for (const std::int64_t each : list_steps(root_)) {
    const fs::path folder = complete(root_, each), old_folder = step_folder(root_, each, Names::old);
    if (each > step || (!known_.contains(each) && !is_complete(folder))) continue;
    known_.insert(each);
    if (kept++ < keep_last) continue;  // the first one is that of `step`
    fs::remove_all(old_folder, ignored);
    fs::rename(folder, old_folder, ignored);  // a partly removed folder must not look like a checkpoint
    fs::remove(old_folder / Names::manifest, ignored);
    fs::remove_all(old_folder, ignored);
    known_.erase(each);
  }
}

void CheckpointFolder::abandon(std::int64_t step) noexcept {
  std::error_code ignored;
  const fs::path writing = in_progress(root_, step);
  if (!fs::exists(writing / Names::manifest, ignored)) fs::remove_all(writing, ignored);
}

}  // namespace tera
