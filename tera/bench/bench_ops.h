#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tera/bench/bench_cases.h"
#include "tera/train/backend.h"

namespace tera {

struct BenchOpsOptions {
  DistConfig dist;
  BenchShapes shapes;
  Precision precision = Precision::automatic;  // dtype choice for weights and activations
  std::string only;                            // part of the names of the ops to time; empty: all
  double milliseconds = 0;                     // to spend on each op; 0: a default for the device
  std::string kernel_choices;                  // file of a GPU's autotuning results
  bool json = false;
  std::function<void(const std::string&)> report;  // receives warnings and remarks; may be empty
};

// One op at one shape.
struct OpTime {
  std::string op, shape;
  DType dtype = DType::f32;
  double ms = 0;                // time of one call
  double flops = 0, bytes = 0;  // per call; flops are 0 for memory-bound ops
  double of_limit = 0;          // fraction of the best rate of this run; 0: not known

  bool is_gemm() const { return flops > 0; }
  double rate() const { return (is_gemm() ? flops : bytes) / ms * 1e3; }  // per second
};

// Times every case. A plain copy is the limit of memory-bound ops, the fastest GEMM that of compute-bound ops; both are
// always among the results.
std::vector<OpTime> time_ops(Backend& backend, const BenchOpsOptions& options);

// `tera bench ops`. Returns what to print.
std::string bench_ops(const BenchOpsOptions& options);

}  // namespace tera
