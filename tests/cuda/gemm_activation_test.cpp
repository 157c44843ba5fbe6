// GEMM with fused SwiGLU in one Hopper kernel (wgmma, TMA) against the plain GEMM and the activation after it. Sums of
// integers are exact in any order, so that both give the same bits; shapes have many tiles to a block, in which pieces,
// stages and phases wrap around.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/ops/gemm_activation.h"
#include "tera/ops/planned_calls.h"
#include "tera/tensor/arena.h"
#include "tests/support/fill.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

struct Sizes {
  std::int64_t rows, width, k;
  DType dtype = DType::bf16;
  bool in_place = false;  // dx is x
};

class OpRunner {
 public:
  explicit OpRunner(const cuda::CudaOptions& options)
      : parts_(cuda::make_cuda(options)),
        slab_(parts_.device->allocate(std::size_t{1} << 30)),
        workspace_(parts_.device->allocate(std::size_t{256} << 20)) {
    parts_.ops->bind_workspace(workspace_);
  }

  using Bits = std::vector<std::uint16_t>;
  struct Result {
    Bits x, act, dx;
    bool operator==(const Result&) const = default;
  };

  Result run(const Sizes& s, bool fused) {
    const Calls calls = calls_of(s);
    EXPECT_EQ(parts_.ops->fuses(calls.forward), fused);
    EXPECT_EQ(parts_.ops->fuses(calls.back), fused);
    poison(calls.forward.activation.x);
    poison(calls.forward.activation.y);
    (*parts_.ops)(calls.forward);
    Result result{.x = read(calls.forward.activation.x), .act = read(calls.forward.activation.y), .dx = {}};
    if (!s.in_place) poison(calls.back.activation.dx);
    (*parts_.ops)(calls.back);
    result.dx = read(calls.back.activation.dx);
    return result;
  }

  struct Calls {
    GemmActivationArgs forward;
    GemmActivationBackArgs back;
  };
  Calls calls_of(const Sizes& s) {
    used_ = 0;
    const GemmActivationArgs forward = forward_args(s);
    return {forward, back_args(s, forward)};
  }
  // Enqueues the calls without waiting for the GPU.
  void start(const Calls& calls) {
    (*parts_.ops)(calls.forward);
    (*parts_.ops)(calls.back);
  }
  Result read(const Calls& calls) {
    return {read(calls.forward.activation.x), read(calls.forward.activation.y), read(calls.back.activation.dx)};
  }

  Ops& ops() { return *parts_.ops; }
  std::span<std::byte> slab() const { return slab_; }

 private:
  void poison(const Tensor& tensor) {
    const cudaStream_t stream = static_cast<cuda::CudaOps&>(*parts_.ops).stream();
    cuda::check(cudaMemsetAsync(tensor.data, 0xff, tensor.bytes(), stream), "poison");
  }

  GemmActivationArgs forward_args(const Sizes& s) {
    used_ = 0;
    const Tensor a = random_integers(shape(s.rows, s.k), s.dtype, 1),
                 b = random_integers(shape(2 * s.width, s.k), s.dtype, 2);
    const Tensor x = take(shape(s.rows, 2 * s.width), s.dtype);
    return {.gemm = {.a = a, .b = b, .out = x, .trans_b = true},
            .activation = {.kind = Activation::swiglu, .x = x, .y = take(shape(s.rows, s.width), s.dtype)}};
  }

  GemmActivationBackArgs back_args(const Sizes& s, const GemmActivationArgs& forward) {
    const Tensor a = random_integers(shape(s.rows, s.k), s.dtype, 3),
                 b = random_integers(shape(s.k, s.width), s.dtype, 4);
    const Tensor scratch = take(shape(s.rows, s.width), s.dtype);
    const Tensor dx = s.in_place ? forward.activation.x : take(forward.activation.x.shape, s.dtype);
    return {.gemm = {.a = a, .b = b, .out = scratch},
            .activation = {.kind = Activation::swiglu, .dy = scratch, .x = forward.activation.x, .dx = dx}};
  }

  Tensor take(const Shape& of, DType dtype) {
    const Tensor tensor = make_tensor(slab_.data() + used_, of, dtype);
    used_ = align_up(used_ + tensor.bytes(), 256);
    require(used_ <= slab_.size(), "the case is too large");
    return tensor;
  }

  // -2 to 2, over 32: gates are of the size that SwiGLU bends.
  Tensor random_integers(const Shape& of, DType dtype, std::uint64_t seed) {
    const Tensor tensor = take(of, dtype);
    Bits bits(static_cast<std::size_t>(count(of)));
    std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (auto& value : bits) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const float number = (static_cast<float>((state >> 33) % 5) - 2.0f) / 32.0f;
      value = dtype == DType::bf16 ? std::bit_cast<std::uint16_t>(to_bf16(number))
                                   : std::bit_cast<std::uint16_t>(to_f16(number));
    }
    parts_.ops->from_host(std::as_bytes(std::span(bits)), tensor);
    return tensor;
  }

  Bits read(const Tensor& tensor) {
    Bits bits(static_cast<std::size_t>(count(tensor.shape)));
    parts_.ops->to_host(tensor, std::as_writable_bytes(std::span(bits)));
    return bits;
  }

  cuda::CudaParts parts_;
  std::span<std::byte> slab_, workspace_;
  std::size_t used_ = 0;
};

bool is_hopper() {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major == 9;
}

// Which rows and columns differ first.
std::string first_difference(const OpRunner::Bits& got, const OpRunner::Bits& want, std::int64_t columns) {
  for (std::size_t i = 0; i < want.size(); ++i)
    if (got[i] != want[i])
      return fmt::format("row {} column {}: {:04x}, not {:04x}", static_cast<std::int64_t>(i) / columns,
                         static_cast<std::int64_t>(i) % columns, got[i], want[i]);
  return "none";
}

constexpr auto everywhere = cuda::HopperKernels::wherever_supported;

class CudaGemmActivation : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_hopper()) GTEST_SKIP() << "the GPU is not of Hopper's kind";
  }
};

TEST_F(CudaGemmActivation, OneKernelGivesTheBitsOfTwo) {
  OpRunner plain({.only_plain_gemm = true}), fast({.hopper_kernels = everywhere});
  for (const Sizes& s :
       {Sizes{64, 128, 64}, Sizes{129, 136, 520}, Sizes{2304, 1032, 192}, Sizes{5000, 2048, 328},
        Sizes{5000, 2048, 328, DType::bf16, true}, Sizes{4096, 2816, 1024, DType::f16}, Sizes{257, 8, 8}}) {
    SCOPED_TRACE(fmt::format("{} rows, {} columns, {} terms, {}", s.rows, s.width, s.k, name_of(s.dtype)));
    const OpRunner::Result want = plain.run(s, false), got = fast.run(s, true);
    EXPECT_EQ(first_difference(got.x, want.x, 2 * s.width), "none");
    EXPECT_EQ(first_difference(got.act, want.act, s.width), "none");
    EXPECT_EQ(first_difference(got.dx, want.dx, 2 * s.width), "none");
    EXPECT_TRUE(fast.run(s, true) == got) << "does not repeat";
  }
}

// Ranks as threads share a GPU: blocks of several calls run at once. The calls are repeated, since no other test looks
// for races here.
TEST_F(CudaGemmActivation, CallsOnTwoStreamsDoNotMix) {
  OpRunner runners[2] = {OpRunner({.hopper_kernels = everywhere}), OpRunner({.hopper_kernels = everywhere})};
  OpRunner::Calls calls[2];
  OpRunner::Result alone[2];
  for (const int i : {0, 1}) {
    calls[i] = runners[i].calls_of({3000, i == 0 ? 1024 : 1288, i == 0 ? 256 : 72});
    runners[i].start(calls[i]);
    alone[i] = runners[i].read(calls[i]);
  }
  for (int round = 0; round < 5; ++round) {
    for (int times = 0; times < 20; ++times)
      for (const int i : {0, 1}) runners[i].start(calls[i]);
    for (const int i : {0, 1}) EXPECT_TRUE(runners[i].read(calls[i]) == alone[i]) << "player " << i;
  }
}

TEST_F(CudaGemmActivation, SmallCallsAreLeftToTheLibrary) {
  OpRunner default_options({});
  default_options.run({2048, 2048, 64}, false);
  default_options.run({4096, 4096, 64}, true);
}

// A call of two kernels has a cuBLASLt kernel chosen for its GEMM; a fused call has none.
TEST_F(CudaGemmActivation, OnlyUnfusedGemmsAreTimed) {
  const TempFolder folder;
  OpRunner runner({.hopper_kernels = everywhere, .choices = folder / "kernels.json"});
  const OpRunner::Calls fused = runner.calls_of({512, 256, 128});
  OpRunner::Calls not_fused = runner.calls_of({512, 256, 64});
  not_fused.forward.activation.kind = Activation::geglu;
  not_fused.back.activation.kind = Activation::geglu;
  runner.ops().prepare(
      {.gemm_activations = {fused.forward, not_fused.forward}, .gemm_activation_backs = {fused.back, not_fused.back}},
      runner.slab());
  std::ifstream file(folder / "kernels.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(text.find("512x512x64"), std::string::npos) << text;
  EXPECT_NE(text.find("512x256x64"), std::string::npos) << text;
  EXPECT_EQ(text.find("x128 "), std::string::npos) << text;
}

}  // namespace
}  // namespace tera::test
