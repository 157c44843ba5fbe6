#pragma once
#include <functional>
#include <string>

#include "tera/config/setup.h"
#include "tera/train/launch.h"

namespace tera {

struct BenchOptions {
  std::int64_t steps = 0;   // in all; 0: train.train_iters, or 10
  std::int64_t warmup = 2;  // the first of them, which do not count
  bool json = false;
  bool profile = false;                          // also where the time of a step of the first rank goes
  std::string trace;                             // file for every call of that step; empty: none
  std::string kernel_choices;                    // file that keeps a GPU's choices by timing; empty: choose anew
  std::function<void(const std::string&)> tell;  // is given what the user should know besides; may be empty
};

// `tera bench step`: timed steps on mock data, on all ranks of the launch. Returns what to print; nothing where the
// first rank is in another process.
std::string bench_step(const Setup& setup, const BenchOptions& options, const Launch& launch = {});

}  // namespace tera
