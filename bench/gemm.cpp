// Speed of GEMMs on the shapes of training: `gemm_bench [threads] [isa] [filter]`. For each shape the best of
// several runs, since other work on the machine can only slow a run down. One thread is timed by the processor time it
// gets, several by the wall clock, for which the machine has to be quiet.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/ops/gemm.h"

namespace {

using namespace tera;

struct Case {
  std::string name;
  std::int64_t m, n, k;
  bool trans_a, trans_b, accumulate;
};

// The three GEMMs of a linear layer with weight [out,in] on `tokens` rows.
void add_layer(std::vector<Case>& cases, const std::string& name, std::int64_t tokens, std::int64_t out,
               std::int64_t in) {
  cases.push_back({name + " forward", tokens, out, in, false, true, false});
  cases.push_back({name + " dx", tokens, in, out, false, false, false});
  cases.push_back({name + " dw", out, in, tokens, true, false, true});
}

std::vector<Case> training_cases() {
  std::vector<Case> cases;
  add_layer(cases, "A qkv", 2048, 768, 256);
  add_layer(cases, "A proj", 2048, 256, 256);
  add_layer(cases, "A up", 2048, 1376, 256);
  add_layer(cases, "A down", 2048, 256, 688);
  add_layer(cases, "A head", 2048, 512, 256);
  for (std::int64_t tokens : {1024, 4096}) {
    const std::string model = tokens == 1024 ? "B1 " : "B4 ";
    add_layer(cases, model + "qkv", tokens, 2304, 768);
    add_layer(cases, model + "proj", tokens, 768, 768);
    add_layer(cases, model + "up", tokens, 4096, 768);
    add_layer(cases, model + "down", tokens, 768, 2048);
  }
  add_layer(cases, "B head", 512, 32000, 768);
  for (std::int64_t rows : {1, 4, 8, 16, 32, 64})
    cases.push_back({fmt::format("thin {}", rows), rows, 4096, 768, false, true, false});
  return cases;
}

class Bench {
 public:
  Bench(int threads, cpu::Isa isa)
      : clock_(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC), ops_(threads, isa), rules_(threads) {}

  double gflops(const Case& c) {
    GemmArgs args{.a = matrix(0, c.trans_a ? c.k : c.m, c.trans_a ? c.m : c.k),
                  .b = matrix(1, c.trans_b ? c.n : c.k, c.trans_b ? c.k : c.n),
                  .out = matrix(2, c.m, c.n),
                  .bias = {},
                  .residual = {},
                  .trans_a = c.trans_a,
                  .trans_b = c.trans_b,
                  .accumulate = c.accumulate};
    const std::size_t bytes = rules_.workspace(args);
    if (workspace_.size() < bytes) workspace_ = device_.allocate(bytes);
    ops_.bind_workspace(workspace_);
    const double flops = 2.0 * static_cast<double>(c.m) * static_cast<double>(c.n) * static_cast<double>(c.k);
    double best = 1e30, spent = 0;
    for (int i = 0; i < 5 || (spent < 0.25 && i < 200); ++i) {
      const double start = now();
      ops_(args);
      const double seconds = now() - start;
      best = std::min(best, seconds);
      spent += seconds;
    }
    return flops / best * 1e-9;
  }

 private:
  Tensor matrix(std::size_t slot, std::int64_t rows, std::int64_t columns) {
    const auto bytes = static_cast<std::size_t>(rows * columns) * sizeof(float);
    auto& slab = slabs_[slot];
    if (slab.size() < bytes) {
      slab = device_.allocate(bytes);
      auto* values = reinterpret_cast<float*>(slab.data());
      for (std::size_t i = 0; i < bytes / sizeof(float); ++i) values[i] = static_cast<float>(i % 17) * 0.01f - 0.08f;
    }
    return make_tensor(slab.data(), shape(rows, columns), DType::f32);
  }

  double now() const {
    timespec time{};
    clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  clockid_t clock_;
  cpu::CpuDevice device_;
  cpu::CpuOps ops_;
  cpu::CpuWorkspaceRules rules_;
  std::span<std::byte> workspace_;
  std::array<std::span<std::byte>, 3> slabs_;
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::string isa_name = argc > 2 ? argv[2] : std::string(name_of(cpu::best_isa()));
  const std::string filter = argc > 3 ? argv[3] : "";
  const auto isa = isa_name == "avx2" ? cpu::Isa::avx2 : isa_name == "avx512" ? cpu::Isa::avx512 : cpu::Isa::baseline;
  Bench bench(threads, isa);
  fmt::print("{} threads, {}; fp32 GFLOP/s, best of several\n", threads, isa_name);
  for (const auto& c : training_cases()) {
    if (c.name.find(filter) == std::string::npos) continue;
    fmt::print("{:16} {:6}x{:6}x{:6} {:8.1f}\n", c.name, c.m, c.n, c.k, bench.gflops(c));
  }
}
