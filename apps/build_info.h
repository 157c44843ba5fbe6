#pragma once
// How this program was built; the values are filled in at build time (cmake/build_info.cpp.in).

#include <string_view>

namespace tera {

struct BuildInfo {
  std::string_view version;
  std::string_view commit;      // abbreviated, "-dirty" when files differed from it; empty outside a repository
  std::string_view compiler;    // "GNU 12.2.0"
  std::string_view build_type;  // "Release"
  std::string_view sanitize;    // "address", "thread" or empty
  std::string_view processor;   // "x86_64", "aarch64"
};

BuildInfo build_info();

}  // namespace tera
