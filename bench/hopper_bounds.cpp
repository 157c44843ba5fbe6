// From which size on our Hopper kernels (wgmma, TMA) are profitable: `hopper_bounds [milliseconds for each]`. Calls
// from small to large, each by the libraries and by our kernels wherever they support it; the thresholds of
// hopper_is_profitable and CudaOps::fuses follow this table. Deterministic, bf16.

#include <fmt/core.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tera/backend/cuda/kernels/hopper/hopper_attention_workspace.h"
#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/base/error.h"
#include "tera/bench/bench_ops.h"

namespace {

using namespace tera;

// The local shapes of a rank: with tensor parallelism fewer heads, or a shard of F.
struct Heads {
  std::int64_t sequences, S, N, G, D;
};
struct Mlp {
  std::int64_t T, H, F;
};

const std::vector<Heads> heads{
    {1, 512, 8, 8, 128},   {1, 1024, 4, 1, 128},   {1, 1024, 8, 1, 128},   {1, 2048, 4, 1, 128},  {1, 2048, 4, 4, 128},
    {2, 512, 16, 4, 128},  {1, 1024, 16, 16, 128}, {1, 4096, 4, 1, 128},   {1, 4096, 5, 1, 128},  {1, 4096, 6, 1, 128},
    {1, 4096, 8, 1, 128},  {1, 4096, 8, 2, 128},   {1, 4096, 16, 4, 128},  {1, 4096, 32, 8, 128}, {1, 4096, 4, 4, 128},
    {1, 4096, 6, 6, 128},  {1, 8192, 4, 1, 128},   {1, 8192, 8, 2, 128},   {1, 2048, 8, 2, 128},  {1, 2048, 32, 8, 128},
    {4, 1024, 12, 2, 128}, {8, 1024, 12, 2, 128},  {16, 1024, 12, 2, 128}, {1, 512, 12, 12, 64},  {1, 1024, 4, 1, 64},
    {1, 1024, 8, 2, 64},   {1, 2048, 4, 1, 64},    {1, 1024, 12, 12, 64},  {1, 4096, 4, 1, 64},   {1, 4096, 8, 2, 64},
    {1, 4096, 16, 4, 64},  {1, 4096, 32, 8, 64},   {1, 2048, 16, 4, 64},   {4, 512, 16, 16, 64},
};
const std::vector<Mlp> mlps{{512, 2048, 8192},   {1024, 2048, 8192}, {2048, 2048, 8192}, {4096, 2048, 8192},
                            {1024, 4096, 14336}, {4096, 4096, 1792}, {4096, 4096, 3584}, {8192, 4096, 1792},
                            {1024, 1536, 8960},  {2048, 1536, 8960}};

Backend make(cuda::HopperKernels kernels) {
  cuda::CudaParts parts = cuda::make_cuda({.hopper_kernels = kernels});
  return {.name = std::move(parts.name),
          .peak_flops = parts.peak_flops,
          .device = std::move(parts.device),
          .rules = cuda::make_cuda_workspace_rules(),
          .ops = std::move(parts.ops)};
}

// Times the ops whose names contain `only`.
std::vector<OpTime> measure(cuda::HopperKernels kernels, const BenchShapes& shapes, const std::string& only,
                            double milliseconds) {
  Backend backend = make(kernels);
  BenchOpsOptions options;
  options.shapes = shapes;
  options.only = only;
  options.milliseconds = milliseconds;
  std::vector<OpTime> times = time_ops(backend, options);
  std::erase_if(times, [&](const OpTime& time) { return time.op.find(only) == std::string::npos; });
  return times;
}

// counts: for each op its size, in the unit of its threshold.
void compare(const BenchShapes& shapes, const std::string& only, const std::vector<std::int64_t>& counts,
             double milliseconds) {
  const auto library = measure(cuda::HopperKernels::never, shapes, only, milliseconds),
             ours = measure(cuda::HopperKernels::wherever_supported, shapes, only, milliseconds);
  for (std::size_t i = 0; i < library.size() && i < counts.size(); ++i)
    fmt::print("{:<34} {:<20} {:>4} kv {:>2}  {:>6} {:>10.4f} {:>10.4f} {:>9.3f}\n", library[i].op, library[i].shape,
               shapes.head_size, shapes.kv_heads, counts[i], library[i].ms, ours[i].ms, library[i].ms / ours[i].ms);
  std::fflush(stdout);
}

std::int64_t tiles(std::int64_t rows, std::int64_t columns) { return (rows + 255) / 256 * ((columns + 255) / 256); }

}  // namespace

int main(int count, char** words) {
  const double milliseconds = count > 1 ? std::atof(words[1]) : 200;
  try {
    fmt::print("{:<34} {:<20} {:>10}  {:>6} {:>10} {:>10} {:>9}\n", "op", "shape", "", "count", "library ms", "ours ms",
               "times");
    for (const Heads& h : heads)
      compare({.tokens = h.sequences * h.S,
               .sequence = h.S,
               .hidden = 256,
               .ffn = 256,
               .vocab = 1024,
               .heads = h.N,
               .kv_heads = h.G,
               .head_size = h.D,
               .parameters = 1 << 20,
               .experts = {{"none", 256, 2, 128, 128}}},
              "attention_back", {cuda::kernels::HopperAttentionSizes{h.sequences, h.S, h.N, h.G, h.D}.units()},
              milliseconds);
    for (const Mlp& m : mlps)
      compare({.tokens = m.T,
               .sequence = m.T,
               .hidden = m.H,
               .ffn = m.F,
               .vocab = 1024,
               .heads = 4,
               .kv_heads = 4,
               .head_size = 64,
               .parameters = 1 << 20,
               .experts = {{"none", 256, 2, 128, 128}}},
              ", swiglu", {tiles(m.T, 2 * m.F), tiles(m.T, m.F)}, milliseconds);
  } catch (const std::exception& error) {
    fmt::print(stderr, "hopper_bounds: {}\n", error.what());
    return 1;
  }
}
