#pragma once
// What the operating system says about this machine; empty or zero where it says nothing.

#include <cstddef>
#include <string>

namespace tera {

struct MachineInfo {
  std::string system;     // "Debian GNU/Linux 12 (bookworm)"
  std::string cpu_model;  // "AMD EPYC 7B13"
  unsigned cores = 0;     // that this process may use
  std::size_t memory_bytes = 0, available_bytes = 0;
  std::string huge_pages;  // transparent huge pages: "always", "madvise" or "never"
};

MachineInfo query_machine();

}  // namespace tera
