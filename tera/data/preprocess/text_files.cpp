#include "tera/data/preprocess/text_files.h"

#include <glob.h>

#include <algorithm>
#include <cstdint>
#include <system_error>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/utf8.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_text_bytes = std::size_t{1} << 36;

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::recursive_directory_iterator walk(folder, error);
  for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    const bool hidden = walk->path().filename().string().starts_with('.');
    if (hidden && walk->is_directory(error)) walk.disable_recursion_pending();
    if (!hidden && walk->is_regular_file(error)) found.push_back(walk->path());
  }
  require_user(!error, "cannot read the folder {}: {}", folder.string(), error.message());
  require_user(!found.empty(), "the folder {} holds no files", folder.string());
  std::ranges::sort(found);
  return found;
}

std::vector<fs::path> matches_of(const std::string& pattern, std::string_view option) {
  glob_t result{};
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &result);  // its own order would follow the locale
  std::vector<fs::path> found(result.gl_pathv, result.gl_pathv + (status == 0 ? result.gl_pathc : 0));
  ::globfree(&result);
  require_user(!found.empty(), "no file matches {} ({})", pattern, option);
  std::ranges::sort(found);
  return found;
}

void add_path(const fs::path& path, std::vector<fs::path>& files) {
  std::error_code ignored;  // what cannot be looked at cannot be read either, and reading says why
  if (fs::is_directory(path, ignored))
    std::ranges::copy(files_below(path), std::back_inserter(files));
  else
    files.push_back(path);
}

}  // namespace

std::vector<fs::path> find_text_files(std::span<const std::string> paths, std::string_view option) {
  require_user(!paths.empty(), "{} names no files; give text files, folders or patterns", option);
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    std::error_code ignored;
    const bool pattern = path.find_first_of("*?[") != std::string::npos;
    if (pattern && !fs::exists(path, ignored))
      for (const fs::path& match : matches_of(path, option)) add_path(match, files);
    else
      add_path(path, files);
  }
  return files;
}

std::string read_text_file(const fs::path& path) {
  std::string text = read_whole_file(path, max_text_bytes);
  require_user(!text.empty(), "the text file {} is empty", path.string());
  const std::size_t good = valid_utf8_prefix(text);
  if (good < text.size()) {
    const std::string_view before = std::string_view(text).substr(0, good);
    fail_user("{}:{}: the line is not UTF-8: byte {} is 0x{:02x}", path.string(), 1 + std::ranges::count(before, '\n'),
              good - (before.rfind('\n') + 1) + 1, static_cast<unsigned char>(text[good]));
  }
  return text;
}

}  // namespace tera
