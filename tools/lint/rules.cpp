#include "tools/lint/rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <regex>
#include <utility>

#include "tools/lint/include_order.h"

namespace tera::lint {
namespace {

constexpr std::size_t most_columns = 120;

class Findings {
 public:
  explicit Findings(std::string path) : path_(std::move(path)) {}
  void add(std::size_t index, std::string message) { all_.push_back({path_, index + 1, std::move(message)}); }
  std::vector<Finding> take() { return std::move(all_); }

 private:
  std::string path_;
  std::vector<Finding> all_;
};

struct Include {
  std::string header;  // empty when the line is no include
  bool quoted = false;
};

// Read from the line as written, since the blanked one has lost the name.
Include parse_include(const SourceFile& file, std::size_t index) {
  if (file.code[index].find('#') == std::string::npos) return {};
  static const std::regex pattern(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::smatch match;
  if (!std::regex_search(file.lines[index], match, pattern)) return {};
  return {match[2].str(), match[1].str() == "\""};
}

void check_includes(const SourceFile& file, Findings& findings) {
  const bool in_library = file.path.starts_with("tera/");
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    const Include include = parse_include(file, i);
    if (include.header.empty()) continue;
    const std::string problem = in_library && include.quoted && !include.header.starts_with("tera/")
                                    ? "our own headers are named from the root, \"tera/...\""
                                    : include_problem(file.path, include.header);
    if (!problem.empty()) findings.add(i, fmt::format("includes {}: {}", include.header, problem));
  }
}

// The first line that is neither blank nor a comment must be the guard.
void check_guard(const SourceFile& file, Findings& findings) {
  if (!is_header(file.path)) return;
  const auto is_blank = [](const std::string& line) { return line.find_first_not_of(" \t") == std::string::npos; };
  const auto first = std::find_if_not(file.code.begin(), file.code.end(), is_blank);
  if (first != file.code.end() && first->starts_with("#pragma once")) return;
  findings.add(first == file.code.end() ? 0 : static_cast<std::size_t>(first - file.code.begin()),
               "a header starts with #pragma once");
}

void check_environment(const SourceFile& file, Findings& findings) {
  const std::string& path = file.path;
  if (path.starts_with("apps/") || path.starts_with("tests/") || path == "tera/train/launch.cpp" ||
      path == "tools/cuda_on_cpu/options.cpp")
    return;
  for (std::size_t i = 0; i < file.code.size(); ++i)
    if (uses(file.code[i], "getenv") || uses(file.code[i], "secure_getenv"))
      findings.add(i, "the environment is read in apps/ and tera/train/launch.cpp only; pass the value in");
}

void check_console(const SourceFile& file, Findings& findings) {
  if (!file.path.starts_with("tera/")) return;
  constexpr std::array<std::string_view, 5> console{"cout", "cerr", "clog", "printf", "puts"};
  for (std::size_t i = 0; i < file.code.size(); ++i)
    for (const std::string_view name : console)
      if (uses(file.code[i], name))
        findings.add(i, fmt::format("the library speaks through its log or returns text, not through {}", name));
}

// Characters, not bytes: continuation bytes of UTF-8 do not count.
std::size_t columns(const std::string& line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void check_columns(const SourceFile& file, Findings& findings) {
  for (std::size_t i = 0; i < file.lines.size(); ++i)
    if (const std::size_t wide = columns(file.lines[i]); wide > most_columns)
      findings.add(i, fmt::format("{} columns; {} is the limit", wide, most_columns));
}

}  // namespace

bool is_header(std::string_view path) { return path.ends_with(".h") || path.ends_with(".cuh"); }

bool is_source(std::string_view path) { return is_header(path) || path.ends_with(".cpp") || path.ends_with(".cu"); }

std::vector<Finding> check_source(const SourceFile& file) {
  Findings findings(file.path);
  check_includes(file, findings);
  check_guard(file, findings);
  check_environment(file, findings);
  check_console(file, findings);
  check_columns(file, findings);
  return findings.take();
}

std::vector<Finding> check_text(const SourceFile& file) {
  static const std::regex home(R"((^|[^\w./-])/(home|root|Users)/\w)");
  Findings findings(file.path);
  for (std::size_t i = 0; i < file.lines.size(); ++i)
    if (std::regex_search(file.lines[i], home)) findings.add(i, "a path into a home folder means nothing elsewhere");
  return findings.take();
}

}  // namespace tera::lint
