// tera_lint [REPOSITORY]: prints every broken rule as file:line: message, and lists long files.

#include <fmt/core.h>

#include <cstdio>
#include <exception>

#include "tools/lint/lint.h"

namespace {

constexpr std::size_t long_file = 400;

void print(const tera::lint::Report& report) {
  for (const auto& finding : report.findings) {
    const std::string line = finding.line > 0 ? fmt::format(":{}", finding.line) : "";
    fmt::print("{}{}: {}\n", finding.path, line, finding.message);
  }
  std::size_t lines = 0;
  for (const auto& file : report.sizes) {
    lines += file.lines;
    if (file.lines > long_file) fmt::print("note: {} has grown to {} lines\n", file.path, file.lines);
  }
  fmt::print("lint: {} files, {} lines, {} findings\n", report.sizes.size(), lines, report.findings.size());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const tera::lint::Report report = tera::lint::check_repository(argc > 1 ? argv[1] : ".");
    print(report);
    return report.findings.empty() ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tera_lint: {}\n", error.what());
    return 2;
  }
}
