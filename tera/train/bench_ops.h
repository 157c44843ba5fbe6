#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tera/train/backend.h"
#include "tera/train/bench_cases.h"

namespace tera {

struct BenchOpsOptions {
  DistConfig dist;
  BenchShapes shapes;
  Precision precision = Precision::automatic;  // of weights and activations
  std::string only;                            // part of the name of the ops to time; empty: all
  double milliseconds = 0;                     // to spend on each; 0: what suits the device
  std::string kernel_choices;                  // file that keeps what a GPU chose by timing
  bool json = false;
  std::function<void(const std::string&)> tell;  // is given what the user should know besides; may be empty
};

// One op at one shape.
struct OpTime {
  std::string op, shape;
  DType dtype = DType::f32;
  double ms = 0;                // of one call
  double flops = 0, bytes = 0;  // of one call; flops only where they are the limit
  double of_limit = 0;          // the fraction of the best rate of this run that it reached; 0: not known

  bool is_product() const { return flops > 0; }
  double rate() const { return (is_product() ? flops : bytes) / ms * 1e3; }  // per second
};

// Times every case. A plain copy is the limit of what moves memory, the fastest matrix product that of arithmetic; both
// are always among the results.
std::vector<OpTime> time_ops(Backend& backend, const BenchOpsOptions& options);

// `tera bench ops`. Returns what to print.
std::string bench_ops(const BenchOpsOptions& options);

}  // namespace tera
