#include "tera/config/checkpoint_path.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "tera/base/file.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> folders_in(const fs::path& folder, const std::function<bool(const fs::path&)>& is_wanted) {
  std::vector<fs::path> found;
  std::error_code error, ignored;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->is_directory(ignored) && is_wanted(it->path())) found.push_back(it->path());
  std::ranges::sort(found);
  return found;
}

}  // namespace

bool holds_checkpoints(const fs::path& folder) {
  const auto is_step = [](const fs::path& path) { return path.filename().string().starts_with("step_"); };
  return path_exists(folder / "manifest.json") || path_exists(folder / "latest") ||
         !folders_in(folder, is_step).empty();
}

std::string why_no_checkpoint(const fs::path& path) {
  std::error_code ignored;
  if (!path_exists(path)) return {};
  if (!fs::is_directory(path, ignored)) return "it is a file; give the folder that it is in";
  if (holds_checkpoints(path)) return {};
  if (path_exists(path / "config.json"))
    return fmt::format("it is a Hugging Face folder; use model.hf={}", path.string());
  if (const auto inside = folders_in(path, holds_checkpoints); !inside.empty())
    return fmt::format("it holds no checkpoints itself; they are in {}", inside.front().string());
  return {};
}

}  // namespace tera
