#pragma once
#include <fmt/core.h>

#include <cstdio>

#include "tera/config/setup.h"

namespace tera {

// For commands that start no run: the warnings that a run would get, on standard error.
inline void print_warnings(const Setup& setup) {
  for (const std::string& warning : setup.warnings) fmt::print(stderr, "warning: {}\n", warning);
}

}  // namespace tera
