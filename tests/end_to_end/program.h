#pragma once
// The real program, started as users do.

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/paths.h"

namespace tera::test {

struct Outcome {
  int status = -1;
  std::string output;  // standard output and error together
};

inline Outcome run_shell(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen(("{ " + command + "; } 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer{};
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    outcome.output.append(buffer.data(), n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.status = WEXITSTATUS(status);
  return outcome;
}

// Runs `tera ARGUMENTS` in a shell, so that tests can redirect as users do.
inline Outcome run_program(const std::string& arguments) {
  return run_shell("\"" + std::string(paths::program) + "\" " + arguments);
}

// The text after a key of every line of a run's metrics that has it, digits as they were printed.
inline std::vector<std::string> column(const std::filesystem::path& run, const std::string& key) {
  std::vector<std::string> values;
  const std::string before = "\"" + key + "\":";
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const std::size_t at = line.find(before);
    if (at == std::string::npos) continue;
    const std::size_t begin = at + before.size();
    values.push_back(line.substr(begin, line.find_first_of(",}", begin) - begin));
  }
  return values;
}

}  // namespace tera::test
