#pragma once
#include <functional>
#include <string>

#include "tera/config/setup.h"
#include "tera/train/launch.h"

namespace tera {

struct BenchOptions {
  std::int64_t steps = 0;   // in all; 0: train.train_iters, or 10
  std::int64_t warmup = 2;  // first steps that do not count
  bool json = false;
  bool profile = false;                            // a step of rank 0 is profiled as well
  std::string trace;                               // file for a trace of every call of the profiled step; empty: none
  std::string kernel_choices;                      // file of a GPU's autotuning results; empty: tune anew
  std::function<void(const std::string&)> report;  // receives warnings and remarks; may be empty
};

// `tera bench step`: timed steps on mock data, on all ranks of the launch. Returns the text to print; empty where
// rank 0 is in another process.
std::string bench_step(const Setup& setup, const BenchOptions& options, const Launch& launch = {});

}  // namespace tera
