#include "tera/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>

#include "tera/base/error.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "step_", writing_suffix = ".writing", old_suffix = ".old";
constexpr auto next_name = "latest.next";  // what `latest` is about to name

fs::path with_suffix(fs::path path, std::string_view suffix) { return path += suffix; }

std::string read_name(const fs::path& root, const char* file) {
  std::string name = read_whole_file(root / file, 256);
  while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
  require_user(!name.empty() && name.find('/') == std::string::npos && name[0] != '.',
               "{}: '{}' names no folder here: '{}'", root.string(), file, name);
  return name;
}

// The step of "step_00000100" with the suffix, or nothing.
std::optional<std::int64_t> step_of(std::string_view name, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  name.remove_suffix(suffix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc{} || end != name.data() + name.size() || name.size() < 8) return std::nullopt;
  return step;
}

// A link is somebody else's: what it points to is neither counted nor removed.
std::vector<std::int64_t> list_steps(const fs::path& root, std::string_view suffix) {
  std::vector<std::int64_t> steps;
  std::error_code error, ignored;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error))
    if (const auto step = step_of(it->path().filename().string(), suffix); step && !it->is_symlink(ignored))
      steps.push_back(*step);
  std::ranges::sort(steps, std::greater{});
  return steps;
}

// Held until the descriptor is closed, by whatever ends this process. Where a file system has no locks, there is none.
FileDescriptor take_lock(const fs::path& root) {
  const fs::path path = root / ".lock";
  FileDescriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  require_user(static_cast<bool>(lock), "cannot open {}: {}", path.string(), std::generic_category().message(errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    fail_user("{}: another run is saving its checkpoints there; give each run a checkpoint.save of its own",
              root.string());
  return lock;
}

// A crash while a checkpoint was published or replaced may have left a complete one under another name.
std::optional<fs::path> with_any_name(const fs::path& folder) {
  for (const std::string_view suffix : {std::string_view(), writing_suffix, old_suffix})
    if (is_checkpoint(with_suffix(folder, suffix))) return with_suffix(folder, suffix);
  return std::nullopt;
}

// A crash between the rename of a folder and that of `latest` leaves the newer name in latest.next.
std::optional<fs::path> named_checkpoint(const fs::path& root) {
  for (const char* file : {next_name, CheckpointFolder::latest_name})
    if (path_exists(root / file))
      if (auto named = with_any_name(root / read_name(root, file))) return named;
  return std::nullopt;
}

}  // namespace

fs::path CheckpointFolder::complete(const fs::path& root, std::int64_t step) {
  return root / fmt::format("{}{:08d}", prefix, step);
}

fs::path CheckpointFolder::beside(const fs::path& root, std::int64_t step) {
  return with_suffix(complete(root, step), writing_suffix);
}

CheckpointFolder::CheckpointFolder(fs::path root) : root_(std::move(root)) {
  std::error_code error;
  fs::create_directories(root_, error);
  require_user(!error, "checkpoint.save={}: {}", root_.string(), error.message());
  lock_ = take_lock(root_);
  mend();
}

// What is whole and the only one of its step gets its name back; the rest of what a crash left is removed.
void CheckpointFolder::mend() {
  std::error_code ignored;
  for (const std::string_view suffix : {writing_suffix, old_suffix}) {
    for (const std::int64_t step : list_steps(root_, suffix)) {
      const fs::path folder = complete(root_, step), left = with_suffix(folder, suffix);
      if (is_checkpoint(left) && !path_exists(folder)) fs::rename(left, folder, ignored);
      fs::remove_all(left, ignored);
    }
  }
}

void CheckpointFolder::begin(std::int64_t step) {
  const fs::path folder = complete(root_, step), writing = beside(root_, step);
  std::error_code error;
  if (is_checkpoint(writing) && !path_exists(folder)) fs::rename(writing, folder, error);
  fs::remove_all(writing, error);
  if (!error) fs::create_directories(writing, error);
  require_user(!error, "cannot make the folder {}: {}", writing.string(), error.message());
}

void CheckpointFolder::publish(std::int64_t step, const std::string& manifest, std::int64_t keep_last) {
  const fs::path folder = complete(root_, step), writing = beside(root_, step), aside = with_suffix(folder, old_suffix);
  sync_parent_folder(writing / manifest_name);
  write_file_atomically(writing / manifest_name, manifest);
  write_file_atomically(root_ / next_name, folder.filename().string() + "\n");
  std::error_code ignored;
  try {
    const bool replaces = path_exists(folder);
    if (replaces) {
      fs::remove_all(aside, ignored);  // of an earlier crash, and older than `folder`
      rename_path(folder, aside);
    }
    try {
      rename_path(writing, folder);
    } catch (const UserError&) {
      if (replaces) fs::rename(aside, folder, ignored);
      throw;
    }
    sync_parent_folder(folder);
  } catch (const UserError& error) {
    fail_user("{}; the new checkpoint is complete in {} and can be used from there", error.what(), writing.string());
  }
  rename_path(root_ / next_name, root_ / latest_name);
  sync_parent_folder(folder);
  fs::remove_all(aside, ignored);
  remove_older(step, keep_last);
}

// Later ones, which a run that went back to an earlier step left, are not this run's to remove.
void CheckpointFolder::remove_older(std::int64_t step, std::int64_t keep_last) {
  if (keep_last == 0) return;
  std::error_code ignored;
  std::int64_t kept = 0;
  for (const std::int64_t each : list_steps(root_, "")) {
    if (each > step || !is_checkpoint(complete(root_, each)) || kept++ < keep_last) continue;
    const fs::path folder = complete(root_, each), aside = with_suffix(folder, old_suffix);
    fs::remove_all(aside, ignored);
    fs::rename(folder, aside, ignored);  // half removed, it is not seen as a checkpoint
    fs::remove(aside / manifest_name, ignored);
    fs::remove_all(aside, ignored);
  }
}

void CheckpointFolder::abandon(std::int64_t step) noexcept {
  std::error_code ignored;
  const fs::path writing = beside(root_, step);
  if (!fs::exists(writing / manifest_name, ignored)) fs::remove_all(writing, ignored);
}

bool is_checkpoint(const fs::path& folder) { return path_exists(folder / CheckpointFolder::manifest_name); }

fs::path resolve_checkpoint(const fs::path& path) {
  std::error_code ignored;
  require_user(path_exists(path) && fs::is_directory(path, ignored), "{}: there is no such folder", path.string());
  if (is_checkpoint(path)) return path;
  if (const auto named = named_checkpoint(path)) return *named;
  if (path_exists(path / CheckpointFolder::latest_name))
    fail_user("{}: 'latest' names {}, which is not complete", path.string(),
              read_name(path, CheckpointFolder::latest_name));
  if (const auto newest = newest_checkpoint(path)) return *newest;
  fail_user("{}: neither a checkpoint (no manifest.json) nor a folder of checkpoints (no latest)", path.string());
}

std::optional<fs::path> newest_checkpoint(const fs::path& root) {
  if (auto named = named_checkpoint(root)) return named;
  for (const std::int64_t step : list_steps(root, ""))
    if (is_checkpoint(CheckpointFolder::complete(root, step))) return CheckpointFolder::complete(root, step);
  return std::nullopt;
}

}  // namespace tera
