// GEMM against loops in double, on every instruction set of this machine (or on the GPU, see tests/support/gpu.h), with
// guard bytes around each tensor.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/base/error.h"
#include "tera/base/rng.h"
#include "tera/ops/gemm.h"
#include "tests/support/close.h"
#include "tests/support/gpu.h"

namespace tera {
namespace {

enum class Extra { none, bias, residual, bias_and_residual, residual_is_out, accumulate };

struct GemmCase {
  std::int64_t m, n, k;
  bool trans_a = false, trans_b = false;
  DType in = DType::f32, out = DType::f32;
  Extra extra = Extra::none;
  DType extra_dtype = DType::f32;  // dtype of bias and residual
  std::int64_t padding = 0;        // added to every row stride

  std::string name() const {
    return fmt::format("m={} n={} k={} {}{} {}->{} extra={} ({}) padding={}", m, n, k, trans_a ? 'T' : 'N',
                       trans_b ? 'T' : 'N', name_of(in), name_of(out), static_cast<int>(extra), name_of(extra_dtype),
                       padding);
  }
};

// A matrix with guard bytes before, after and between its rows.
class Matrix {
 public:
  Matrix(std::int64_t rows, std::int64_t columns, DType dtype, std::int64_t padding)
      : rows_(rows), columns_(columns), stride_(columns + padding), size_(size_of(dtype)) {
    bytes_.assign(2 * guard_size + static_cast<std::size_t>(rows * stride_) * size_, guard);
    tensor_ = make_tensor(bytes_.data() + guard_size, shape(rows, columns), dtype);
    tensor_.stride[0] = stride_;
  }

  const Tensor& tensor() const { return tensor_; }
  std::int64_t rows() const { return rows_; }

  double get(std::int64_t i, std::int64_t j) const {
    const std::int64_t at = i * stride_ + j;
    switch (tensor_.dtype) {
      case DType::bf16: return to_float(tensor_.as<BFloat16>()[at]);
      case DType::f16: return to_float(tensor_.as<Float16>()[at]);
      default: return tensor_.as<float>()[at];
    }
  }

  void fill(std::uint64_t seed) {
    for (std::int64_t i = 0; i < rows_; ++i)
      for (std::int64_t j = 0; j < columns_; ++j) set(i, j, value_at(seed, i * columns_ + j));
  }

  bool guards_intact() const {
    std::vector<unsigned char> copy = bytes_;
    for (std::int64_t i = 0; i < rows_; ++i)
      std::memset(copy.data() + guard_size + static_cast<std::size_t>(i * stride_) * size_, guard,
                  static_cast<std::size_t>(columns_) * size_);
    return std::ranges::all_of(copy, [](unsigned char byte) { return byte == guard; });
  }

  bool operator==(const Matrix& other) const { return bytes_ == other.bytes_; }

 private:
  static constexpr unsigned char guard = 0xff;  // a NaN in every float type, should it be read
  static constexpr std::size_t guard_size = 64;

  static float value_at(std::uint64_t seed, std::int64_t index) {
    const auto hash = (static_cast<std::uint64_t>(index) + 1) * 0x9e3779b97f4a7c15u ^ seed * 0xd1342543de82ef95u;
    return static_cast<float>((hash >> 40) % 2001) * 1e-3f - 1.0f;
  }

  void set(std::int64_t i, std::int64_t j, float value) {
    const std::int64_t at = i * stride_ + j;
    switch (tensor_.dtype) {
      case DType::bf16: tensor_.as<BFloat16>()[at] = to_bf16(value); break;
      case DType::f16: tensor_.as<Float16>()[at] = to_f16(value); break;
      default: tensor_.as<float>()[at] = value;
    }
  }

  std::int64_t rows_, columns_, stride_;
  std::size_t size_;
  std::vector<unsigned char> bytes_;
  Tensor tensor_;
};

struct Operands {
  Matrix a, b, out, bias, residual;

  explicit Operands(const GemmCase& c)
      : a(c.trans_a ? c.k : c.m, c.trans_a ? c.m : c.k, c.in, c.padding),
        b(c.trans_b ? c.n : c.k, c.trans_b ? c.k : c.n, c.in, 2 * c.padding),
        out(c.m, c.n, c.out, 3 * c.padding),
        bias(1, c.n, c.extra_dtype, 0),
        residual(c.m, c.n, c.extra_dtype, c.padding) {
    a.fill(1);
    b.fill(2);
    // Without `accumulate` the output holds NaN, which must not be read.
    if (c.extra == Extra::residual_is_out || c.extra == Extra::accumulate) out.fill(3);
    bias.fill(4);
    residual.fill(5);
  }

  GemmArgs args(const GemmCase& c) const {
    GemmArgs args{.a = a.tensor(), .b = b.tensor(), .out = out.tensor(), .bias = {}, .residual = {}};
    args.trans_a = c.trans_a;
    args.trans_b = c.trans_b;
    args.accumulate = c.extra == Extra::accumulate;
    if (c.extra == Extra::bias || c.extra == Extra::bias_and_residual)
      args.bias = make_tensor(bias.tensor().data, shape(c.n), c.extra_dtype);
    if (c.extra == Extra::residual || c.extra == Extra::bias_and_residual) args.residual = residual.tensor();
    if (c.extra == Extra::residual_is_out) args.residual = out.tensor();
    return args;
  }
};

void run(cpu::Isa isa, int threads, GemmArgs args) {
  if (test::test_device() == test::TestDevice::gpu) {
    Tensor* const tensors[] = {&args.a, &args.b, &args.out, &args.bias, &args.residual};
    return test::call_on_gpu(tensors, [&](Ops& ops) { ops(args); });
  }
  cpu::CpuOps ops(threads, isa);
  std::vector<std::byte> workspace(cpu::CpuWorkspaceRules(threads).workspace(args) + 64);
  void* begin = workspace.data();
  std::size_t space = workspace.size();
  std::align(64, workspace.size() - 64, begin, space);
  ops.bind_workspace({static_cast<std::byte*>(begin), workspace.size() - 64});
  ops(args);
}

std::vector<cpu::Isa> isas() {
  if (test::test_device() == test::TestDevice::gpu) return {cpu::best_isa()};  // run() does not look at it
  std::vector<cpu::Isa> all;
  for (const auto& [isa, name] : EnumNames<cpu::Isa>::values)
    if (cpu::supports(isa)) all.push_back(isa);
  return all;
}

struct Expected {
  double value, magnitude;
};

// The result by the definition, from operands as they were before the call.
Expected expected(const GemmCase& c, const Operands& before, std::int64_t i, std::int64_t j) {
  Expected e{0, 0};
  const auto add = [&e](double term) {
    e.value += term;
    e.magnitude += std::abs(term);
  };
  for (std::int64_t k = 0; k < c.k; ++k)
    add((c.trans_a ? before.a.get(k, i) : before.a.get(i, k)) * (c.trans_b ? before.b.get(j, k) : before.b.get(k, j)));
  if (c.extra == Extra::bias || c.extra == Extra::bias_and_residual) add(before.bias.get(0, j));
  if (c.extra == Extra::residual || c.extra == Extra::bias_and_residual) add(before.residual.get(i, j));
  if (c.extra == Extra::residual_is_out || c.extra == Extra::accumulate) add(before.out.get(i, j));
  return e;
}

std::vector<Expected> all_expected(const GemmCase& c, const Operands& before) {
  std::vector<Expected> all;
  for (std::int64_t i = 0; i < c.m; ++i)
    for (std::int64_t j = 0; j < c.n; ++j) all.push_back(expected(c, before, i, j));
  return all;
}

void check_result(const GemmCase& c, const std::vector<Expected>& wanted, const Operands& before,
                  const Operands& after) {
  for (std::int64_t i = 0; i < c.m; ++i)
    for (std::int64_t j = 0; j < c.n; ++j) {
      const auto [value, magnitude] = wanted[static_cast<std::size_t>(i * c.n + j)];
      ASSERT_NEAR(after.out.get(i, j), value, test::tolerance(c.out, c.k + 2, magnitude, value))
          << "at " << i << "," << j;
    }
  EXPECT_TRUE(after.out.guards_intact());
  EXPECT_TRUE(after.a == before.a && after.b == before.b && after.bias == before.bias);
  EXPECT_TRUE(after.residual == before.residual);
}

void check_case(const GemmCase& c) {
  SCOPED_TRACE(c.name());
  const Operands before(c);
  const auto wanted = all_expected(c, before);
  for (const auto isa : isas()) {
    SCOPED_TRACE(name_of(isa));
    const Operands one(c), three(c);
    run(isa, 1, one.args(c));
    check_result(c, wanted, before, one);
    run(isa, 3, three.args(c));
    ASSERT_TRUE(one.out == three.out) << "one and three threads, or two runs on the GPU, differ";
    if (testing::Test::HasFatalFailure()) return;
  }
}

constexpr std::array<std::pair<bool, bool>, 4> forms{{{false, false}, {false, true}, {true, false}, {true, true}}};
constexpr std::pair<DType, DType> types[] = {{DType::f32, DType::f32},
                                             {DType::bf16, DType::bf16},
                                             {DType::bf16, DType::f32},
                                             {DType::f16, DType::f16},
                                             {DType::f16, DType::f32}};  // dtypes of operands, result
constexpr Extra extras[] = {
    Extra::none, Extra::bias, Extra::residual, Extra::bias_and_residual, Extra::residual_is_out, Extra::accumulate};

TEST(Gemm, EverySizeAroundTileBoundaries) {
  const std::int64_t sizes[] = {1, 2, 3, 5, 7, 8, 11, 12, 13, 16, 17, 23, 31, 32, 33, 47, 64, 65, 70};
  int index = 0;
  for (const auto& [trans_a, trans_b] : forms)
    for (const auto m : sizes)
      for (const auto n : sizes) {
        // The depths are cycled through, not crossed with the other sizes.
        const std::int64_t k = sizes[static_cast<std::size_t>(++index * 7 % 19)];
        check_case({.m = m, .n = n, .k = k, .trans_a = trans_a, .trans_b = trans_b, .padding = index % 3});
      }
}

TEST(Gemm, StorageAndExtras) {
  for (const auto& [in, out] : types)
    for (const auto& [trans_a, trans_b] : forms)
      for (const auto extra : extras)
        for (const auto extra_dtype : {in, out})
          for (const std::int64_t k : {29, 530}) {  // one block of depth, and several
            check_case({.m = 37,
                        .n = 75,
                        .k = k,
                        .trans_a = trans_a,
                        .trans_b = trans_b,
                        .in = in,
                        .out = out,
                        .extra = extra,
                        .extra_dtype = extra_dtype,
                        .padding = 5});
            if (HasFatalFailure()) return;
          }
}

// Rows begin at multiples of 16 bytes, as those of models do: on a GPU other kernels compute them.
TEST(Gemm, AlignedRows) {
  for (const auto& [in, out] : types)
    for (const auto& [trans_a, trans_b] : forms)
      for (const auto extra : extras)
        for (const std::int64_t padding : {0, 8}) {
          check_case({.m = 72,
                      .n = 64,
                      .k = 136,
                      .trans_a = trans_a,
                      .trans_b = trans_b,
                      .in = in,
                      .out = out,
                      .extra = extra,
                      .extra_dtype = out,
                      .padding = padding});
          if (HasFatalFailure()) return;
        }
}

// Sizes that need several chunks of rows, columns and depth; the reference is taken at some elements only.
TEST(Gemm, SeveralChunks) {
  for (const auto& [trans_a, trans_b] : forms)
    for (const auto& c :
         {GemmCase{.m = 2100, .n = 40, .k = 19}, GemmCase{.m = 21, .n = 1100, .k = 400},
          GemmCase{.m = 150, .n = 70, .k = 4500, .out = DType::f32, .extra = Extra::accumulate},
          GemmCase{.m = 130, .n = 70, .k = 4500, .in = DType::bf16, .out = DType::bf16, .padding = 1}}) {
      GemmCase formed = c;
      formed.trans_a = trans_a;
      formed.trans_b = trans_b;
      SCOPED_TRACE(formed.name());
      const Operands before(formed), one(formed), three(formed);
      run(cpu::best_isa(), 1, one.args(formed));
      run(cpu::best_isa(), 3, three.args(formed));
      EXPECT_TRUE(one.out == three.out);
      EXPECT_TRUE(one.out.guards_intact());
      for (std::int64_t at = 0; at < c.m * c.n; at += 37) {
        const auto [value, magnitude] = expected(formed, before, at / c.n, at % c.n);
        ASSERT_NEAR(one.out.get(at / c.n, at % c.n), value, test::tolerance(c.out, c.k, magnitude, value)) << at;
      }
    }
}

TEST(Gemm, EmptyDims) {
  for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{0, 5}, {5, 0}, {0, 0}, {14, 35}})
    for (const auto extra : {Extra::none, Extra::bias_and_residual, Extra::residual_is_out, Extra::accumulate})
      for (const auto out : {DType::f32, DType::bf16})
        check_case({.m = m, .n = n, .k = 0, .in = out, .out = out, .extra = extra, .extra_dtype = out, .padding = 2});
  check_case({.m = 0, .n = 8, .k = 3});
  check_case({.m = 8, .n = 0, .k = 3});
}

TEST(Gemm, NotANumberPassesThrough) {
  for (const auto isa : isas()) {
    Matrix a(3, 4, DType::f32, 0), b(4, 5, DType::f32, 0), out(3, 5, DType::f32, 0);
    a.fill(1);
    b.fill(2);
    a.tensor().as<float>()[1 * 4 + 2] = std::nanf("");
    GemmArgs args{.a = a.tensor(), .b = b.tensor(), .out = out.tensor(), .bias = {}, .residual = {}};
    run(isa, 1, args);
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t j = 0; j < 5; ++j) EXPECT_EQ(std::isnan(out.get(i, j)), i == 1) << i << "," << j;
  }
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  const GemmCase c{.m = 4, .n = 6, .k = 8};
  const Operands operands(c);
  const auto refuses = [&](auto change, const char* words) {
    GemmArgs args = operands.args(c);
    change(args);
    try {
      args.check();
      ADD_FAILURE() << "accepted, though: " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("gemm"), std::string::npos) << error.what();
    }
  };
  refuses([](GemmArgs& args) { args.trans_a = true; }, "a");
  refuses([](GemmArgs& args) { args.trans_b = true; }, "b");
  refuses([](GemmArgs& args) { args.b.dtype = DType::bf16; }, "b");
  refuses([](GemmArgs& args) { args.out.dtype = DType::bf16; }, "out has the dtype of a, or f32");
  refuses([](GemmArgs& args) { args.out.dtype = DType::i32; }, "out");
  refuses([](GemmArgs& args) { args.out = args.out.rows(0, 3); }, "a");
  refuses([](GemmArgs& args) { args.a = {}; }, "a");
  refuses([&](GemmArgs& args) { args.bias = make_tensor(operands.bias.tensor().data, shape(5), DType::f32); }, "bias");
  refuses([&](GemmArgs& args) { args.residual = operands.residual.tensor().rows(0, 2); }, "residual");
  refuses(
      [&](GemmArgs& args) {
        args.accumulate = true;
        args.residual = operands.residual.tensor();
      },
      "accumulate excludes bias and residual");
}

TEST(Gemm, NeedsThePlannedWorkspace) {
  if (test::test_device() == test::TestDevice::gpu) GTEST_SKIP() << "of the CPU";
  const GemmCase c{.m = 40, .n = 64, .k = 32};
  const Operands operands(c);
  cpu::CpuOps ops(1, cpu::best_isa());
  EXPECT_THROW(ops(operands.args(c)), Error);
}

}  // namespace
}  // namespace tera
