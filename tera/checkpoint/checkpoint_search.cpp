#include "tera/checkpoint/checkpoint_search.h"

#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "tera/base/error.h"
#include "tera/base/file.h"

namespace tera {
namespace {

namespace fs = std::filesystem;
using Names = CheckpointNames;

constexpr std::string_view prefix = "step_";
constexpr std::size_t max_manifest_bytes = std::size_t{1} << 30;

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

// The step of a folder with or without a suffix, or nothing.
std::optional<std::int64_t> step_of(const fs::path& folder) {
  const std::string name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  for (const std::string_view suffix : {std::string_view(), Names::writing, Names::old})
    if (const auto step = step_of(name, suffix)) return step;
  return std::nullopt;
}

std::string read_name(const fs::path& root, const char* file) {
  std::string name = read_whole_file(root / file, 256);
  while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
  require_user(!name.empty() && name.find('/') == std::string::npos && name[0] != '.',
               "{}: '{}' names no folder here: '{}'", root.string(), file, name);
  return name;
}

bool has_manifest(const fs::path& folder) { return path_exists(folder / Names::manifest); }

// Files must be in the folder itself: links could lead anywhere.
void check_is_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  require_user(!error, "cannot open {}: {}", path.string(), error.message());
  require_user(!fs::is_symlink(status), "{} is a symbolic link; a checkpoint holds its files itself", path.string());
  require_user(fs::is_regular_file(status), "{} is not a file", path.string());
}

void check_file(const fs::path& path, std::uint64_t listed) {
  check_is_file(path);
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  require_user(!error, "cannot open {}: {}", path.string(), error.message());
  require_user(bytes == listed, "{} has {} bytes, but the manifest says {}", path.string(), bytes, listed);
}

// Searches a folder for the checkpoint to resume from, and notes those that it passes over.
class Search {
 public:
  explicit Search(const fs::path& root) : root_(root) {}

  NewestCheckpoint run() {
    // A crash between the rename of a folder and that of `latest` leaves the newer name in latest.next; a .writing
    // folder of that step is newer than the folder without suffix.
    if (const auto next = named_step(root_, Names::next))
      if (try_step(*next, {Names::writing, {}, Names::old})) return finish();
    const auto latest = named_step(root_, Names::latest);
    if (path_exists(root_ / Names::latest) && !latest) note(Names::latest, "it names no step");
    std::vector<std::int64_t> steps;
    for (const std::string_view suffix : {std::string_view(), Names::writing, Names::old})
      std::ranges::copy(list_steps(root_, suffix), std::back_inserter(steps));
    if (latest) steps.push_back(*latest);
    std::ranges::sort(steps, std::greater{});
    steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
    for (const std::int64_t step : steps)
      if (!latest || step <= *latest)
        if (try_step(step, {{}, Names::writing, Names::old})) return finish();
    return finish();
  }

 private:
  bool try_step(std::int64_t step, std::initializer_list<std::string_view> suffixes) {
    for (const std::string_view suffix : suffixes) {
      const fs::path folder = step_folder(root_, step, suffix);
      if (!path_exists(folder)) continue;
      const std::string why = why_incomplete(folder);
      if (why.empty()) {
        newest_.folder = folder;
        return true;
      }
      if (suffix.empty()) note(folder.filename().string(), why);
    }
    if (named_step(root_, Names::latest) == step && !path_exists(step_folder(root_, step)))
      note(step_folder(root_, step).filename().string(), "'latest' names it, and it is not there");
    return false;
  }

  // Ends the search, and notes folders that it did not reach and that have no manifest.
  NewestCheckpoint finish() {
    for (const std::int64_t step : list_steps(root_)) {
      const fs::path folder = step_folder(root_, step);
      if (folder != newest_.folder && !has_manifest(folder)) note(folder.filename().string(), "no manifest.json");
    }
    return std::move(newest_);
  }

  void note(std::string_view name, std::string_view why) {
    if (std::ranges::find(noted_, name) != noted_.end()) return;
    noted_.emplace_back(name);
    newest_.passed_over.push_back(fmt::format("{} ({})", name, why));
  }

  const fs::path& root_;
  NewestCheckpoint newest_;
  std::vector<std::string> noted_;
};

}  // namespace

fs::path step_folder(const fs::path& root, std::int64_t step, std::string_view suffix) {
  return root / fmt::format("{}{:08d}{}", prefix, step, suffix);
}

bool has_step_name(const fs::path& folder) { return step_of(folder).has_value(); }

std::vector<std::int64_t> list_steps(const fs::path& root, std::string_view suffix) {
  std::vector<std::int64_t> steps;
  std::error_code error, ignored;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error))
    if (const auto step = step_of(it->path().filename().string(), suffix); step && !it->is_symlink(ignored))
      steps.push_back(*step);
  std::ranges::sort(steps, std::greater{});
  return steps;
}

std::optional<std::int64_t> named_step(const fs::path& root, const char* file) {
  try {
    return path_exists(root / file) ? step_of(read_name(root, file), {}) : std::nullopt;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path file = folder / Names::manifest;
  check_is_file(file);
  Manifest manifest = parse_manifest(read_whole_file(file, max_manifest_bytes), file.string());
  const auto step = step_of(folder);
  require_user(!step || *step == manifest.source.step, "{}: it is of step {}, but its folder is named as step {}",
               file.string(), manifest.source.step, step.value_or(0));
  for (const ManifestFile& listed : manifest.files) check_file(folder / listed.name, listed.bytes);
  return manifest;
}

std::string why_incomplete(const fs::path& folder) {
  try {
    if (!has_manifest(folder)) return "no manifest.json";
    static_cast<void>(read_manifest(folder));
    return {};
  } catch (const UserError& error) {
    return error.what();
  }
}

std::optional<fs::path> complete_before(const fs::path& folder) {
  const fs::path root = (folder.has_filename() ? folder : folder.parent_path()).parent_path();
  const auto before = step_of(folder);
  if (!before) return std::nullopt;
  for (const std::int64_t step : list_steps(root.empty() ? "." : root))
    if (step < *before && is_complete(step_folder(root, step))) return step_folder(root, step);
  return std::nullopt;
}

NewestCheckpoint find_newest(const fs::path& root) { return Search(root).run(); }

bool is_locked(const fs::path& root) {
  const FileDescriptor file(::open((root / Names::lock).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct flock probe {};
  probe.l_type = F_RDLCK;  // asks whether a read lock would conflict with a writer's lock
  probe.l_whence = SEEK_SET;
  return file && ::fcntl(file.get(), F_OFD_GETLK, &probe) == 0 && probe.l_type != F_UNLCK;
}

fs::path resolve_checkpoint(const fs::path& path) {
  std::error_code ignored;
  require_user(path_exists(path) && fs::is_directory(path, ignored), "{}: there is no such folder", path.string());
  if (has_manifest(path)) return path;
  if (path_exists(path / Names::latest)) {
    const fs::path named = path / read_name(path, Names::latest);
    if (is_locked(path) && has_manifest(named)) return named;
    if (is_locked(path))
      fail_user("{}: 'latest' names {}, which is not complete", path.string(), named.filename().string());
    const NewestCheckpoint newest = find_newest(path);
    const auto is_saved_last = [&] {  // its step is that of latest, or was announced in latest.next
      const auto found = step_of(*newest.folder);
      return found == step_of(named) || found == named_step(path, Names::next);
    };
    if (newest.folder && is_saved_last()) return *newest.folder;
    if (has_manifest(named)) return named;  // opening it reports the problem
    fail_user("{}: 'latest' names {}, which is not complete{}", path.string(), named.filename().string(),
              newest.folder ? fmt::format("; {} is", newest.folder->string()) : "");
  }
  if (const auto newest = find_newest(path); newest.folder) return *newest.folder;
  fail_user("{}: neither a checkpoint (no manifest.json) nor a folder of checkpoints (no latest)", path.string());
}

}  // namespace tera
