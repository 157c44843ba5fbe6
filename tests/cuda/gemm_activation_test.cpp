// The product with SwiGLU in one kernel of Hopper's against the plain product and the activation behind it. Sums of
// whole numbers are exact in any order, so that both give the same bits; shapes are those of many tiles to a block, in
// which pieces, stages and turns come round.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <bit>
#include <span>
#include <string>
#include <vector>

#include "tera/backend/cuda/cuda_error.h"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/tensor/arena.h"
#include "tests/support/fill.h"

namespace tera::test {
namespace {

struct Sizes {
  std::int64_t rows, width, k;
  DType dtype = DType::bf16;
};

class Player {
 public:
  explicit Player(const cuda::CudaOptions& options)
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

  Result play(const Sizes& s, bool fused) {
    const GemmActivationArgs forward = forward_args(s);
    const GemmActivationBackArgs back = back_args(s, forward);
    EXPECT_EQ(parts_.ops->fuses(forward), fused);
    EXPECT_EQ(parts_.ops->fuses(back), fused);
    for (const Tensor* out : {&forward.product.out, &forward.activation.y, &back.activation.dx})
      cuda::check(cudaMemsetAsync(out->data, 0xff, out->bytes(), stream()), "poison");
    parts_.ops->gemm_activation(forward);
    parts_.ops->gemm_activation_back(back);
    return {read(forward.activation.x), read(forward.activation.y), read(back.activation.dx)};
  }

 private:
  cudaStream_t stream() { return static_cast<cuda::CudaOps&>(*parts_.ops).stream(); }

  GemmActivationArgs forward_args(const Sizes& s) {
    used_ = 0;
    const Tensor a = whole_numbers(shape(s.rows, s.k), s.dtype, 1),
                 b = whole_numbers(shape(2 * s.width, s.k), s.dtype, 2);
    const Tensor x = take(shape(s.rows, 2 * s.width), s.dtype);
    return {.product = {.a = a, .b = b, .out = x, .trans_b = true},
            .activation = {.kind = Activation::swiglu, .x = x, .y = take(shape(s.rows, s.width), s.dtype)}};
  }

  GemmActivationBackArgs back_args(const Sizes& s, const GemmActivationArgs& forward) {
    const Tensor a = whole_numbers(shape(s.rows, s.k), s.dtype, 3), b = whole_numbers(shape(s.k, s.width), s.dtype, 4);
    const Tensor room = take(shape(s.rows, s.width), s.dtype), dx = take(forward.activation.x.shape, s.dtype);
    return {.product = {.a = a, .b = b, .out = room},
            .activation = {.kind = Activation::swiglu, .dy = room, .x = forward.activation.x, .dx = dx}};
  }

  Tensor take(const Shape& of, DType dtype) {
    const Tensor tensor = make_tensor(slab_.data() + used_, of, dtype);
    used_ = align_up(used_ + tensor.bytes(), 256);
    require(used_ <= slab_.size(), "the case is too large");
    return tensor;
  }

  // -2 to 2, over 32: gates are of the size that SwiGLU bends.
  Tensor whole_numbers(const Shape& of, DType dtype, std::uint64_t seed) {
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
std::string first_difference(const Player::Bits& got, const Player::Bits& want, std::int64_t columns) {
  for (std::size_t i = 0; i < want.size(); ++i)
    if (got[i] != want[i])
      return fmt::format("row {} column {}: {:04x}, not {:04x}", static_cast<std::int64_t>(i) / columns,
                         static_cast<std::int64_t>(i) % columns, got[i], want[i]);
  return "none";
}

TEST(CudaGemmActivation, OneKernelGivesTheBitsOfTwo) {
  if (!is_hopper()) GTEST_SKIP() << "the GPU is not of Hopper's kind";
  Player plain({.plain_products = true}), fast({});
  for (const Sizes& s : {Sizes{128, 128, 64}, Sizes{129, 136, 520}, Sizes{2304, 1032, 192}, Sizes{5000, 2048, 328},
                         Sizes{4096, 2816, 1024, DType::f16}, Sizes{257, 8, 8}}) {
    SCOPED_TRACE(fmt::format("{} rows, {} columns, {} terms, {}", s.rows, s.width, s.k, name_of(s.dtype)));
    const Player::Result want = plain.play(s, false), got = fast.play(s, true);
    EXPECT_EQ(first_difference(got.x, want.x, 2 * s.width), "none");
    EXPECT_EQ(first_difference(got.act, want.act, s.width), "none");
    EXPECT_EQ(first_difference(got.dx, want.dx, 2 * s.width), "none");
    EXPECT_TRUE(fast.play(s, true) == got) << "does not repeat";
  }
}

TEST(CudaGemmActivation, FewRowsAreLeftToTheLibrary) { Player({}).play({127, 128, 64}, false); }

}  // namespace
}  // namespace tera::test
