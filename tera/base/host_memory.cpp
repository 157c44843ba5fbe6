#include "tera/base/host_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace tera {
namespace {

constexpr std::size_t not_known = SIZE_MAX;  // then a plan is not limited, and the allocation may fail

// The number after a key in a table of /proc or /sys.
std::optional<std::size_t> find_number(const char* file, std::string_view key) {
  std::ifstream table(file);
  for (std::string word; table >> word;) {
    std::size_t number = 0;
    if (word == key && table >> number) return number;
    table.ignore(256, '\n');
  }
  return std::nullopt;
}

std::size_t free_memory() {
  const auto kib = find_number("/proc/meminfo", "MemAvailable:");
  return kib ? *kib * 1024 : not_known;
}

// The OOM killer ends a container at its cgroup limit, even where the machine has more memory.
std::size_t left_in_container() {
  std::size_t limit = 0, used = 0;
  std::ifstream max("/sys/fs/cgroup/memory.max"), current("/sys/fs/cgroup/memory.current");
  if (!(max >> limit) || !(current >> used)) return not_known;  // no limit ("max"), or no container
  used -= std::min(used, find_number("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0));  // reclaimable cache
  return limit > used ? limit - used : 0;
}

}  // namespace

std::size_t available_host_memory() { return std::min(free_memory(), left_in_container()); }

}  // namespace tera
