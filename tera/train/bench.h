#pragma once
#include <string>

#include "tera/config/setup.h"

namespace tera {

struct BenchOptions {
  int steps = 10;
  int warmup = 3;  // steps before those that count
  bool json = false;
};

// `tera bench step`: timed steps on mock data. Returns what to print.
std::string bench_step(const Setup& setup, const BenchOptions& options);

}  // namespace tera
