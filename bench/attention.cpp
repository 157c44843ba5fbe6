// Speed of attention on the shapes of training: `attention_bench [threads] [isa] [filter] [runs]`. For each shape
// the best of several runs, in GFLOP/s of unmasked work (forward 2 GEMMs, backward 5), beside a large GEMM.

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/ops/attention.h"
#include "tera/ops/gemm.h"

namespace {

using namespace tera;

struct Case {
  std::string name;
  std::int64_t batch, S, N, G, D;
  DType dtype = DType::f32;
  float dropout = 0;
};

const std::vector<Case> cases = {
    {"small", 8, 256, 4, 4, 64},
    {"base", 1, 1024, 12, 12, 64},
    {"long", 1, 4096, 4, 4, 64},
    {"grouped", 1, 1024, 16, 4, 128},
    {"bf16", 1, 1024, 12, 12, 64, DType::bf16},
    {"dropout", 1, 1024, 12, 12, 64, DType::f32, 0.1f},
    {"wide 80", 1, 1024, 12, 12, 80},
};

// On one thread, time of this thread only, so that other work on the machine counts less.
double now(int threads) {
  timespec t{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

class Bench {
 public:
  Bench(int threads, cpu::Isa isa, int runs) : threads_(threads), runs_(runs), ops_(threads, isa) {
    workspace_ = device_.allocate(std::size_t{256} << 20);
    ops_.bind_workspace(workspace_);
  }

  void attention(const Case& c) {
    const std::int64_t T = c.batch * c.S, heads = c.N + 2 * c.G;
    const Tensor qkv = tensor(shape(T, heads, c.D), c.dtype), dqkv = tensor(shape(T, heads, c.D), c.dtype);
    const Tensor out = tensor(shape(T, c.N, c.D), c.dtype), dout = tensor(shape(T, c.N, c.D), c.dtype);
    const Tensor lse = tensor(shape(c.N, T), DType::f32), rows = tensor(shape(T), DType::i64);
    AttentionShape s{.batch = c.batch, .scale = 1 / std::sqrt(static_cast<float>(c.D)), .dropout = c.dropout};
    if (c.dropout > 0) s.q_rows = s.k_rows = rows;
    const auto part = [&](const Tensor& of, std::int64_t begin, std::int64_t n) {
      return of.slice(1, begin, begin + n);
    };
    const Tensor q = part(qkv, 0, c.N), k = part(qkv, c.N, c.G), v = part(qkv, c.N + c.G, c.G);
    const AttentionArgs forward{q, k, v, out, lse, s};
    const AttentionBackArgs backward{
        q, k, v, out, dout, lse, part(dqkv, 0, c.N), part(dqkv, c.N, c.G), part(dqkv, c.N + c.G, c.G), s};
    const double gemm_gflop = static_cast<double>(T * (c.S + 1) * c.N * c.D) * 1e-9;
    const double forward_time = best([&] { ops_(forward); });
    const double backward_time = best([&] { ops_(backward); });
    fmt::print("{:10} forward {:7.2f} ms {:6.1f}   backward {:7.2f} ms {:6.1f}   both {:6.1f} GFLOP/s\n", c.name,
               forward_time * 1e3, 2 * gemm_gflop / forward_time, backward_time * 1e3, 5 * gemm_gflop / backward_time,
               7 * gemm_gflop / (forward_time + backward_time));
  }

  void gemm() {
    const Tensor a = tensor(shape(1024, 1024), DType::f32), b = tensor(shape(1024, 1024), DType::f32);
    const Tensor c = tensor(shape(1024, 1024), DType::f32);
    const double time =
        best([&] { ops_(GemmArgs{.a = a, .b = b, .out = c, .bias = {}, .residual = {}, .trans_b = true}); });
    fmt::print("gemm 1024  {:6.1f} GFLOP/s\n", 2 * 1.024 * 1.024 * 1.024 / time);
  }

 private:
  template <class F>
  double best(F run) const {
    double fastest = 1e30;
    for (int i = 0; i < runs_; ++i) {
      const double start = now(threads_);
      run();
      fastest = std::min(fastest, now(threads_) - start);
    }
    return fastest;
  }
  Tensor tensor(const Shape& of, DType dtype) {
    Tensor made = make_tensor(nullptr, of, dtype);
    made.data = device_.allocate(made.bytes()).data();
    for (std::int64_t i = 0; i < count(of); ++i) {
      const float value = static_cast<float>((i * 7919) % 1999) * 1e-3f - 1.0f;
      if (dtype == DType::f32) made.as<float>()[i] = value;
      if (dtype == DType::bf16) made.as<BFloat16>()[i] = to_bf16(value);
      if (dtype == DType::i64) made.as<std::int64_t>()[i] = i;
    }
    return made;
  }

  int threads_, runs_;
  cpu::CpuDevice device_;
  cpu::CpuOps ops_;
  std::span<std::byte> workspace_;
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::string isa_name = argc > 2 ? argv[2] : std::string(name_of(cpu::best_isa()));
  const std::string filter = argc > 3 ? argv[3] : "";
  const auto isa = isa_name == "avx2" ? cpu::Isa::avx2 : isa_name == "avx512" ? cpu::Isa::avx512 : cpu::Isa::baseline;
  Bench bench(threads, isa, argc > 4 ? std::atoi(argv[4]) : 12);
  fmt::print("{} threads, {}\n", threads, isa_name);
  if (filter.empty()) bench.gemm();
  for (const auto& c : cases)
    if (c.name.find(filter) != std::string::npos) bench.attention(c);
}
