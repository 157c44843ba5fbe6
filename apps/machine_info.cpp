#include "apps/machine_info.h"

#include <charconv>
#include <fstream>
#include <string_view>

#include "tera/base/cores.h"

namespace tera {
namespace {

std::string_view trim(std::string_view text, std::string_view what) {
  const std::size_t begin = text.find_first_not_of(what);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(what) - begin + 1);
}

// The value of the first "key<separator>value" line of a file.
std::string lookup(const char* path, std::string_view key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::string_view view = line;
    const std::size_t at = view.find(separator);
    if (at == std::string_view::npos || trim(view.substr(0, at), " \t") != key) continue;
    return std::string(trim(view.substr(at + 1), " \t\""));
  }
  return {};
}

std::size_t memory(std::string_view key) {
  const std::string text = lookup("/proc/meminfo", key, ':');  // "24683148 kB"
  std::size_t kib = 0;
  std::from_chars(text.data(), text.data() + text.size(), kib);
  return kib * 1024;
}

// The file reads "always [madvise] never", the choice in brackets.
std::string huge_page_mode() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  for (std::string word; file >> word;)
    if (word.front() == '[') return word.substr(1, word.size() - 2);
  return {};
}

}  // namespace

MachineInfo query_machine() {
  MachineInfo info;
  info.system = lookup("/etc/os-release", "PRETTY_NAME", '=');
  info.cpu_model = lookup("/proc/cpuinfo", "model name", ':');
  info.cores = static_cast<unsigned>(usable_cores());
  info.memory_bytes = memory("MemTotal");
  info.available_bytes = memory("MemAvailable");
  info.huge_pages = huge_page_mode();
  return info;
}

}  // namespace tera
