// The fast attention, cuDNN's and our own on tensor cores, against our exact kernels, which the op tables check. All
// round probabilities to 16 bits, so they can only be near. Prints the kernel used for each shape, and its workspace;
// on Hopper our own kernel replaces cuDNN for some backwards, which both run here.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tera/backend/cuda/attention_workspace.h"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/libraries/cudnn_attention.h"
#include "tera/base/error.h"
#include "tera/ops/attention.h"
#include "tera/ops/copy.h"
#include "tera/tensor/arena.h"
#include "tests/support/close.h"
#include "tests/support/fill.h"

namespace tera::test {
namespace {

using Floats = std::vector<float>;

struct FastCase {
  std::int64_t batch = 1, queries = 0, keys = 0;
  std::int64_t N = 1, G = 1, D = 64;
  Mask mask = Mask::causal;
  std::int64_t window = 0;
  std::vector<std::int32_t> offsets = {};  // instead of batch, queries, keys
  DType dtype = DType::bf16;
  float scale = 0.125f;
  bool more_keys = false;  // lse is that of more keys than the call has, as in ring attention
  std::string name() const {
    return fmt::format("{} x {} queries, {} keys{}, N={} G={} D={} {} window={} documents={} {} scale={}", batch,
                       queries, keys, more_keys ? " of more" : "", N, G, D, name_of(mask), window,
                       offsets.empty() ? 0 : offsets.size() - 1, name_of(dtype), scale);
  }
};

std::vector<FastCase> fast_cases() {
  return {
      {.batch = 2, .queries = 512, .keys = 512, .N = 8, .G = 2, .D = 64},
      {.batch = 1, .queries = 1024, .keys = 1024, .N = 4, .G = 1, .D = 128},
      {.batch = 3, .queries = 256, .keys = 256, .N = 4, .G = 4, .D = 128, .mask = Mask::full},
      {.batch = 2, .queries = 333, .keys = 333, .N = 6, .G = 2, .D = 80},
      {.batch = 2, .queries = 384, .keys = 384, .N = 6, .G = 3, .D = 64, .window = 100},
      {.batch = 2, .queries = 128, .keys = 320, .N = 4, .G = 2, .D = 64},
      {.batch = 1, .queries = 128, .keys = 320, .N = 4, .G = 2, .D = 64, .window = 70},
      {.batch = 2, .queries = 320, .keys = 128, .N = 4, .G = 2, .D = 64, .mask = Mask::full},
      {.batch = 1, .queries = 256, .keys = 256, .N = 2, .G = 1, .D = 256},
      {.batch = 2, .queries = 512, .keys = 512, .N = 4, .G = 2, .D = 64, .dtype = DType::f16},
      {.batch = 3, .queries = 5, .keys = 5, .N = 4, .G = 2, .D = 64},
      {.batch = 2, .queries = 40, .keys = 40, .N = 4, .G = 2, .D = 128},
      {.batch = 3, .queries = 129, .keys = 129, .N = 6, .G = 2, .D = 64},
      {.batch = 2, .queries = 1111, .keys = 1111, .N = 6, .G = 1, .D = 64},
      {.batch = 2, .queries = 777, .keys = 777, .N = 5, .G = 5, .D = 128, .dtype = DType::f16},
      {.batch = 1, .queries = 2304, .keys = 2304, .N = 4, .G = 2, .D = 128},
      {.batch = 8, .queries = 500, .keys = 500, .N = 12, .G = 6, .D = 64},  // enough pairs of tiles of keys
      {.batch = 8, .queries = 500, .keys = 500, .N = 12, .G = 6, .D = 128},
      {.batch = 4, .queries = 512, .keys = 512, .N = 24, .G = 4, .D = 128},  // not: groups of 6 in three splits
      {.batch = 4, .queries = 512, .keys = 512, .N = 24, .G = 4, .D = 64, .dtype = DType::f16},
      {.batch = 2, .queries = 640, .keys = 640, .N = 4, .G = 2, .D = 64, .more_keys = true},
      {.batch = 1, .queries = 640, .keys = 640, .N = 4, .G = 2, .D = 128, .dtype = DType::f16, .more_keys = true},
      {.batch = 1, .queries = 600, .keys = 600, .N = 4, .G = 2, .D = 64, .scale = 1.f},  // one key has nearly all
      {.batch = 1, .queries = 600, .keys = 600, .N = 4, .G = 2, .D = 128, .scale = 1.f},
      {.N = 4, .G = 2, .D = 64, .offsets = {0, 100, 100, 357, 1024}},
      {.N = 4, .G = 4, .D = 128, .window = 50, .offsets = {0, 1, 300, 600}},
  };
}

// A case of each kind, small enough for an emulated GPU.
std::vector<FastCase> small_cases() {
  return {
      {.batch = 2, .queries = 130, .keys = 130, .N = 4, .G = 2, .D = 64},
      {.batch = 1, .queries = 100, .keys = 100, .N = 3, .G = 1, .D = 128, .mask = Mask::full, .dtype = DType::f16},
      {.batch = 1, .queries = 65, .keys = 65, .N = 2, .G = 2, .D = 80},
      {.batch = 1, .queries = 40, .keys = 40, .N = 2, .G = 1, .D = 256},
      {.batch = 1, .queries = 150, .keys = 150, .N = 2, .G = 1, .D = 64, .window = 70},
      {.batch = 1, .queries = 64, .keys = 160, .N = 2, .G = 1, .D = 64},
      {.batch = 1, .queries = 130, .keys = 70, .N = 2, .G = 1, .D = 64, .mask = Mask::full},
      {.batch = 1, .queries = 128, .keys = 128, .N = 2, .G = 1, .D = 64, .more_keys = true},
      {.batch = 1, .queries = 100, .keys = 100, .N = 2, .G = 1, .D = 64, .scale = 1.f},
      {.N = 2, .G = 1, .D = 64, .offsets = {0, 30, 30, 95, 170}},
      {.N = 2, .G = 2, .D = 128, .window = 20, .offsets = {0, 1, 80, 130}},
  };
}

// One GPU's ops with memory for a case: forward, then backward of what the exact kernels gave.
class OpRunner {
 public:
  explicit OpRunner(const cuda::CudaOptions& options)
      : parts_(cuda::make_cuda(options)),
        slab_(parts_.device->allocate(slab_bytes)),
        workspace_(parts_.device->allocate(workspace_bytes)) {
    parts_.ops->bind_workspace(workspace_);
  }

  struct Result {
    Floats out, lse, dq, dk, dv;
  };
  // given: out and lse that backward takes; empty: those of its own forward.
  Result run(const FastCase& c, const Result& given = {}) {
    used_ = 0;
    const AttentionArgs forward = forward_args(c);
    (*parts_.ops)(forward);
    Result result{.out = read(forward.out), .lse = read(forward.lse)};
    if (!given.out.empty()) write(forward.out, given.out), write(forward.lse, given.lse);
    const AttentionBackArgs backward = backward_args(c, forward);
    go_back(backward);
    read_gradients(backward, result);
    return result;
  }

  // run() in steps, of which only the last waits for the GPU.
  AttentionBackArgs go_forward(const FastCase& c) {
    used_ = 0;
    const AttentionArgs forward = forward_args(c);
    (*parts_.ops)(forward);
    return backward_args(c, forward);
  }
  void go_back(const AttentionBackArgs& args) {
    cudaMemsetAsync(workspace_.data(), 0xff, workspace_.size(), stream());  // NaNs, and counts that are wrong
    (*parts_.ops)(args);
  }
  void read_gradients(const AttentionBackArgs& args, Result& result) {
    result.dq = read(args.dq);
    result.dk = read(args.dk);
    result.dv = read(args.dv);
  }

  AttentionArgs forward_args(const FastCase& c) {
    const bool documents = !c.offsets.empty();
    const std::int64_t q_rows = documents ? c.offsets.back() : c.batch * c.queries;
    const std::int64_t k_rows = documents ? c.offsets.back() : c.batch * c.keys;
    const Tensor q_packed = random(shape(q_rows, c.N + 2 * c.G, c.D), c.dtype, 1);  // [Q | K | V] rows
    const Tensor k_packed = q_rows == k_rows ? q_packed : random(shape(k_rows, c.N + 2 * c.G, c.D), c.dtype, 2);
    AttentionShape s{.batch = c.batch, .mask = c.mask, .window = c.window, .scale = c.scale};
    if (documents) {
      s.q_offsets = take(shape(c.offsets.size()), DType::i32);
      parts_.ops->from_host(std::as_bytes(std::span(c.offsets)), s.q_offsets);
      s.k_offsets = s.q_offsets;
    }
    return {.q = q_packed.slice(1, 0, c.N),
            .k = k_packed.slice(1, c.N, c.N + c.G),
            .v = k_packed.slice(1, c.N + c.G, c.N + 2 * c.G),
            .out = take(shape(q_rows, c.N, c.D), c.dtype),
            .lse = take(shape(c.N, q_rows), DType::f32),
            .shape = s};
  }

  AttentionBackArgs backward_args(const FastCase& c, const AttentionArgs& forward) {
    const Tensor dq_packed = take(shape(forward.q.dim(0), c.N + 2 * c.G, c.D), c.dtype);
    const Tensor dk_packed = take(shape(forward.k.dim(0), c.N + 2 * c.G, c.D), c.dtype);
    return {.q = forward.q,
            .k = forward.k,
            .v = forward.v,
            .out = forward.out,
            .dout = random(forward.out.shape, c.dtype, 3),
            .lse = forward.lse,
            .dq = dq_packed.slice(1, 0, c.N),
            .dk = dk_packed.slice(1, c.N, c.N + c.G),
            .dv = dk_packed.slice(1, c.N + c.G, c.N + 2 * c.G),
            .shape = forward.shape};
  }

  cudaStream_t stream() { return ops().stream(); }
  bool use_hopper(const AttentionBackArgs& args) { return ops().use_hopper(args); }

 private:
  static constexpr std::size_t slab_bytes = std::size_t{256} << 20, workspace_bytes = std::size_t{512} << 20;

  cuda::CudaOps& ops() { return static_cast<cuda::CudaOps&>(*parts_.ops); }

  Tensor take(const Shape& of, DType dtype) {
    const Tensor tensor = make_tensor(slab_.data() + used_, of, dtype);
    used_ = align_up(used_ + tensor.bytes(), 256);
    require(used_ <= slab_.size(), "the case is too large");
    return tensor;
  }

  Tensor random(const Shape& of, DType dtype, std::uint64_t seed) {
    const Tensor tensor = take(of, dtype);
    const Values values = normal_values(of, seed);
    write(tensor, Floats(values.begin(), values.end()));
    return tensor;
  }

  void write(const Tensor& tensor, const Floats& values) {
    if (tensor.dtype == DType::f32) return parts_.ops->from_host(std::as_bytes(std::span(values)), tensor);
    std::vector<std::uint16_t> bits(values.size());
    for (std::size_t i = 0; i < bits.size(); ++i)
      bits[i] = tensor.dtype == DType::bf16 ? std::bit_cast<std::uint16_t>(to_bf16(values[i]))
                                            : std::bit_cast<std::uint16_t>(to_f16(values[i]));
    parts_.ops->from_host(std::as_bytes(std::span(bits)), tensor);
  }

  // The elements as floats; rows may be strided.
  Floats read(const Tensor& tensor) {
    const std::size_t used = used_;
    const Tensor dense = take(tensor.shape, DType::f32);
    const std::int64_t rows = tensor.dim(0), columns = count(tensor.shape) / rows;
    Tensor from = tensor;
    from.shape = shape(rows, columns);
    from.stride = shape(tensor.stride[0], 1);
    (*parts_.ops)(CopyArgs{.src = from, .dst = dense.view(shape(rows, columns))});
    Floats values(static_cast<std::size_t>(rows * columns));
    parts_.ops->to_host(dense, std::as_writable_bytes(std::span(values)));
    used_ = used;
    return values;
  }

  cuda::CudaParts parts_;
  std::span<std::byte> slab_, workspace_;
  std::size_t used_ = 0;
};

std::string bytes_of(std::size_t actual, std::size_t expected) {
  return actual == 0 ? "ours" : fmt::format("cuDNN, {} of {} bytes", actual, expected);
}

bool is_hopper() {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major == 9;
}

// The largest ratio of the norm of the difference to that of the reference, over 64 rows of a head. Early rows and keys
// have the largest values by far, beside which an error in the others would not show.
double worst_tile(const Floats& got, const Floats& want, std::int64_t heads, std::int64_t D) {
  constexpr std::int64_t tile_rows = 64;
  const auto rows = static_cast<std::int64_t>(want.size()) / (heads * D);
  double worst = got.size() == want.size() ? 0 : INFINITY;
  for (std::int64_t first = 0; first < rows; first += tile_rows)
    for (std::int64_t head = 0; head < heads; ++head) {
      double difference = 0, norm = 0;
      for (std::int64_t row = first; row < std::min(first + tile_rows, rows); ++row)
        for (std::int64_t d = 0; d < D; ++d) {
          const auto i = static_cast<std::size_t>((row * heads + head) * D + d);
          const double of_one = double{got[i]} - double{want[i]};
          difference += of_one * of_one;
          norm += double{want[i]} * double{want[i]};
        }
      if (difference == 0) continue;  // norm may be 0, too: keys that no query sees
      const double ratio = std::sqrt(difference / norm);
      if (!(ratio <= worst)) worst = ratio;  // a NaN, too
      if (std::isnan(worst)) return worst;
    }
  return worst;
}

// What the exact kernels say, and what backward was given there.
struct Reference {
  OpRunner::Result given, expected;
};
Reference reference_of(OpRunner& exact, const FastCase& c) {
  const OpRunner::Result alone = exact.run(c);
  if (!c.more_keys) return {alone, alone};
  OpRunner::Result given{.out = alone.out, .lse = alone.lse};
  for (std::size_t i = 0; i < given.lse.size(); ++i) given.lse[i] += 0.25f * static_cast<float>(1 + i % 7);
  return {given, exact.run(c, given)};
}

void compare(const cuda::CudaOptions& options, const std::vector<FastCase>& cases = fast_cases()) {
  OpRunner exact({.exact_attention = true}), fast(options);
  cuda::CudnnAttention library(options, fast.stream());
  for (const FastCase& c : cases) {
    SCOPED_TRACE(c.name());
    const auto [given, expected] = reference_of(exact, c);
    const OpRunner::Result got = fast.run(c, given);
    const double bound = c.dtype == DType::bf16 ? 0.02 : 0.004;
    EXPECT_LT(relative_difference(got.out, expected.out), bound);
    EXPECT_LT(relative_difference(got.lse, expected.lse), 1e-5);
    EXPECT_LT(worst_tile(got.dq, expected.dq, c.N, c.D), bound);
    EXPECT_LT(worst_tile(got.dk, expected.dk, c.G, c.D), bound);
    EXPECT_LT(worst_tile(got.dv, expected.dv, c.G, c.D), bound);
    if (options.deterministic) {
      const OpRunner::Result again = fast.run(c, given);
      EXPECT_TRUE(again.out == got.out && again.lse == got.lse) << "forward does not repeat";
      EXPECT_TRUE(again.dq == got.dq && again.dk == got.dk && again.dv == got.dv) << "backward does not repeat";
    }
    const AttentionArgs forward = fast.forward_args(c);
    const AttentionBackArgs backward = fast.backward_args(c, forward);
    const std::size_t forward_bytes = library.library_bytes(forward), backward_bytes = library.library_bytes(backward);
    EXPECT_LE(forward_bytes, cuda::cudnn_layout(forward).library);
    EXPECT_LE(backward_bytes, cuda::cudnn_layout(backward, options.deterministic).library);
    if (!cuda::cudnn_version().empty() && cuda::cudnn_supports(forward)) {
      EXPECT_GT(forward_bytes, 0u) << library.reason();
      EXPECT_TRUE(backward_bytes > 0 || (options.deterministic && !c.offsets.empty())) << library.reason();
    }
    const bool on_hopper = fast.use_hopper(backward);
    EXPECT_EQ(on_hopper,
              options.hopper_kernels != cuda::HopperKernels::never && cuda::hopper_supports(backward) && is_hopper());
    std::puts(fmt::format(
                  "{}: forward {}, backward {}", c.name(), bytes_of(forward_bytes, cuda::cudnn_layout(forward).library),
                  on_hopper ? "Hopper's"
                            : bytes_of(backward_bytes, cuda::cudnn_layout(backward, options.deterministic).library))
                  .c_str());
  }
  if (!library.reason().empty()) std::puts(("refused: " + library.reason()).c_str());
}

using cuda::HopperKernels;
TEST(CudaAttention, FastIsNearExact) { compare({.hopper_kernels = HopperKernels::wherever_supported}); }
TEST(CudaAttention, FastIsNearExactOnOtherGpus) { compare({.hopper_kernels = HopperKernels::never}); }
TEST(CudaAttention, FastIsNearExactInSmallCases) { compare({.hopper_kernels = HopperKernels::never}, small_cases()); }
TEST(CudaAttention, FastIsNearExactOnOtherGpusWithoutRepeating) {
  compare({.deterministic = false, .hopper_kernels = HopperKernels::never});
}

// More units of work than a GPU runs at once, which wait for each other: no bit depends on their timing.
TEST(CudaAttention, LongBackwardRepeatsItself) {
  OpRunner runner({});
  for (const std::int64_t D : {64, 128}) {
    for (const std::int64_t G : {8, 1}) {  // G = 1 (MQA): dk and dv are sums over eight splits
      const FastCase c{.batch = 2, .queries = 3000, .keys = 3000, .N = 8, .G = G, .D = D};
      EXPECT_TRUE(!is_hopper() || runner.use_hopper(runner.backward_args(c, runner.forward_args(c))));
      const OpRunner::Result first = runner.run(c);
      for (int i = 0; i < 3; ++i) {
        const OpRunner::Result again = runner.run(c);
        EXPECT_TRUE(again.dq == first.dq && again.dk == first.dk && again.dv == first.dv) << c.name();
      }
    }
  }
}

// Ranks as threads share a GPU: units of several calls run at once and wait only for those of their own call.
TEST(CudaAttention, CallsOnTwoStreamsDoNotMix) {
  OpRunner runners[2] = {OpRunner({}), OpRunner({})};
  AttentionBackArgs calls[2];
  OpRunner::Result alone[2], together;
  for (const int i : {0, 1}) {
    calls[i] = runners[i].go_forward({.batch = 2, .queries = 2000, .keys = 2000, .N = 8, .G = 8, .D = i ? 128 : 64});
    runners[i].go_back(calls[i]);
    runners[i].read_gradients(calls[i], alone[i]);
  }
  for (int round = 0; round < 3; ++round) {
    for (int times = 0; times < 10; ++times)
      for (const int i : {0, 1}) runners[i].go_back(calls[i]);
    for (const int i : {0, 1}) {
      runners[i].read_gradients(calls[i], together);
      EXPECT_TRUE(together.dq == alone[i].dq && together.dk == alone[i].dk && together.dv == alone[i].dv) << i;
    }
  }
}

}  // namespace
}  // namespace tera::test
