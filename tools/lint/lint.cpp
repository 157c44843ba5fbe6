#include "tools/lint/lint.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>

#include "tools/lint/include_order.h"

namespace tera::lint {
namespace {

namespace fs = std::filesystem;

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read '" + path.string() + "'");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Whether a folder has sources, not the output of builds, runs and tools.
bool is_ours(const fs::path& folder) {
  static const std::set<std::string> left_behind{"build", "runs", "__pycache__"};
  const std::string name = folder.filename().string();
  return (name == ".ci" || name.front() != '.') && !left_behind.contains(name);
}

bool is_text(const fs::path& path) {
  static const std::set<std::string> endings{"", ".md", ".txt", ".yaml", ".json", ".cmake", ".in", ".py", ".sh"};
  return is_source(path.string()) || endings.contains(path.extension().string());
}

std::vector<std::string> list_files(const fs::path& root) {
  std::vector<std::string> files;
  for (auto it = fs::recursive_directory_iterator(root); it != fs::recursive_directory_iterator(); ++it) {
    if (it->is_directory() && !is_ours(it->path()))
      it.disable_recursion_pending();
    else if (it->is_regular_file() && is_text(it->path()))
      files.push_back(fs::relative(it->path(), root).generic_string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Every folder in the order of includes needs a README, which describes its purpose and that of its subfolders.
void check_readmes(const fs::path& root, const std::vector<FileSize>& sources, std::vector<Finding>& findings) {
  std::set<std::string> folders;
  for (const FileSize& source : sources)
    if (const std::string_view folder = folder_of(source.path); !folder.empty())
      folders.insert("tera/" + std::string(folder));
  for (const std::string& folder : folders)
    if (!fs::exists(root / folder / "README.md"))
      findings.push_back({folder, 0, "has no README.md (purpose, entry file, what it may include)"});
}

// Bounds the files of a folder for readers; families and update rules are lists of similar files, and may grow.
void check_folder_sizes(const std::vector<FileSize>& sources, std::vector<Finding>& findings) {
  constexpr std::size_t max_files = 40;
  std::map<std::string, std::size_t> folders;
  for (const FileSize& source : sources)
    if (source.path.starts_with("tera/")) ++folders[fs::path(source.path).parent_path().generic_string()];
  for (const auto& [folder, files] : folders)
    if (files > max_files && !folder.ends_with("/families") && !folder.ends_with("/rules"))
      findings.push_back({folder, 0, fmt::format("has {} files; {} is the limit", files, max_files)});
}

}  // namespace

Report check_repository(const fs::path& root) {
  if (!fs::is_directory(root / "tera"))
    throw std::runtime_error("'" + root.string() + "' has no folder 'tera': not the repository");
  Report report;
  for (const std::string& path : list_files(root)) {
    const SourceFile file = read_source(path, read_all(root / path));
    std::vector<Finding> found = check_text(file);
    if (is_source(path)) {
      std::ranges::move(check_source(file), std::back_inserter(found));
      report.sizes.push_back({path, file.lines.size()});
    }
    std::ranges::stable_sort(found, std::less{}, &Finding::line);
    std::ranges::move(found, std::back_inserter(report.findings));
  }
  check_readmes(root, report.sizes, report.findings);
  check_folder_sizes(report.sizes, report.findings);
  std::ranges::stable_sort(report.sizes, std::greater{}, &FileSize::lines);
  return report;
}

}  // namespace tera::lint
