#include "tera/base/machine.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <string>
#include <string_view>

#include "tera/base/hash.h"

namespace tera {
namespace {

// "net:[4026531840]"; empty where it is not known.
std::string name_space(const char* link) {
  std::array<char, 64> text{};
  const ssize_t length = ::readlink(link, text.data(), text.size());
  return length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : std::string();
}

// Namespace numbers are unique on one kernel since its boot, which has an id.
std::uint64_t domain_id(const char* link) {
  std::string start;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> start;
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return hash_text(start + "/" + host.data() + "/" + name_space(link));
}

}  // namespace

std::uint64_t memory_domain_id() { return domain_id("/proc/self/ns/mnt"); }
std::uint64_t network_domain_id() { return domain_id("/proc/self/ns/net"); }

}  // namespace tera
