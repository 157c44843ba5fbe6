// Hopper's grouped GEMM (wgmma, TMA, warp specialisation) against plain loops. Most operands are small integers: their
// sums are exact in any order, so that every bit of the result is known, and a wrong tile, swizzle or mask shows as a
// wrong number.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/kernels/hopper/hopper_grouped_gemm.cuh"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tests/support/gpu.h"

namespace tera::test {
namespace {

using cuda::check;
using cuda::kernels::GroupedForm;
using cuda::kernels::HopperGroupedGemm;
using cuda::kernels::Scalar;
using Values = std::vector<float>;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

cudaStream_t stream() { return dynamic_cast<cuda::CudaOps&>(gpu_ops()).stream(); }

// Memory on the device, freed at the end.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : count_(host.size()) {
    check(cudaMalloc(&data_, std::max<std::size_t>(bytes(), 16)), "cudaMalloc");
    write(host);
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* get() const { return static_cast<T*>(data_); }
  void write(const std::vector<T>& host) {
    check(cudaMemcpyAsync(data_, host.data(), bytes(), cudaMemcpyHostToDevice, stream()), "copy to the GPU");
    check(cudaStreamSynchronize(stream()), "copy to the GPU");
  }
  std::vector<T> read() const {
    std::vector<T> host(count_);
    check(cudaMemcpyAsync(host.data(), data_, bytes(), cudaMemcpyDeviceToHost, stream()), "copy from the GPU");
    check(cudaStreamSynchronize(stream()), "the grouped product");
    return host;
  }

 private:
  std::size_t bytes() const { return count_ * sizeof(T); }
  std::size_t count_;
  void* data_ = nullptr;
};

std::uint16_t to_bits(float value, Scalar type) {
  std::uint16_t bits = 0;
  if (type == Scalar::bf16) {
    const __nv_bfloat16 rounded = __float2bfloat16_rn(value);
    std::memcpy(&bits, &rounded, 2);
  } else {
    const __half rounded = __float2half_rn(value);
    std::memcpy(&bits, &rounded, 2);
  }
  return bits;
}

float from_bits(std::uint16_t bits, Scalar type) {
  if (type == Scalar::bf16) return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{bits}));
  return __half2float(__half(__half_raw{bits}));
}

std::vector<std::uint16_t> to_bits(const Values& values, Scalar type) {
  std::vector<std::uint16_t> bits;
  bits.reserve(values.size());
  for (const float value : values) bits.push_back(to_bits(value, type));
  return bits;
}

struct Problem {
  GroupedForm form = GroupedForm::transposed;
  std::vector<int> sizes;
  int n = 0, other = 0;  // other: K, or M for weights
  int unused_rows = 0;   // rows after the last group
  Scalar type = Scalar::bf16;
  bool out_f32 = false;
  bool accumulate = true;  // for weights

  bool weights() const { return form == GroupedForm::weights; }
  int groups() const { return static_cast<int>(sizes.size()); }
  int used_rows() const { return std::accumulate(sizes.begin(), sizes.end(), 0); }
  int rows() const { return used_rows() + unused_rows; }
  Scalar out_type() const { return weights() || out_f32 ? Scalar::f32 : type; }
  std::size_t a_count() const { return static_cast<std::size_t>(rows()) * static_cast<std::size_t>(other); }
  std::size_t b_count() const {
    return static_cast<std::size_t>(weights() ? rows() : groups() * other) * static_cast<std::size_t>(n);
  }
  std::size_t out_count() const {
    return static_cast<std::size_t>(weights() ? groups() * other : rows()) * static_cast<std::size_t>(n);
  }
  std::vector<int> offsets() const {
    std::vector<int> all{0};
    for (const int size : sizes) all.push_back(all.back() + size);
    return all;
  }
  std::string name() const {
    const char* const forms[] = {"transposed", "plain", "weights"};
    return std::string(forms[static_cast<int>(form)]) + (type == Scalar::bf16 ? ", bf16" : ", f16") +
           (out_f32 ? " to f32" : "") + ", n " + std::to_string(n) + (weights() ? ", m " : ", k ") +
           std::to_string(other) + (accumulate ? ", " : ", written, ") + std::to_string(groups()) + " groups, " +
           std::to_string(rows()) + " rows";
  }
};

struct Operands {
  Values a, b, out;  // out: what is there before
};

// Integers from -3 to 3. Rows after the last group, and the weights of groups without rows, are NaN: no kernel may use
// them.
Operands random_integers(const Problem& problem, unsigned seed) {
  std::mt19937 draw(seed);
  const auto some = [&](std::size_t count) {
    Values values(count);
    for (float& value : values) value = static_cast<float>(static_cast<int>(draw() % 7) - 3);
    return values;
  };
  Operands made{some(problem.a_count()), some(problem.b_count()), some(problem.out_count())};
  const auto n = static_cast<std::size_t>(problem.n), other = static_cast<std::size_t>(problem.other);
  const auto used = static_cast<std::size_t>(problem.used_rows());
  std::fill(made.a.begin() + static_cast<std::ptrdiff_t>(used * other), made.a.end(), nan);
  if (problem.weights()) {
    std::fill(made.b.begin() + static_cast<std::ptrdiff_t>(used * n), made.b.end(), nan);
    return made;
  }
  for (std::size_t g = 0; g < problem.sizes.size(); ++g)
    if (problem.sizes[g] == 0) std::fill_n(made.b.begin() + static_cast<std::ptrdiff_t>(g * n * other), n * other, nan);
  return made;
}

// Sums of doubles in plain loops; entries of no group stay as they were.
std::vector<double> expected_of(const Problem& problem, const Operands& from) {
  std::vector<double> out(from.out.begin(), from.out.end());
  if (!problem.accumulate) std::fill(out.begin(), out.end(), 0.0);
  const std::vector<int> offsets = problem.offsets();
  const auto n = static_cast<std::size_t>(problem.n), other = static_cast<std::size_t>(problem.other);
  for (std::size_t g = 0; g < problem.sizes.size(); ++g) {
    for (auto r = static_cast<std::size_t>(offsets[g]); r < static_cast<std::size_t>(offsets[g + 1]); ++r) {
      if (!problem.weights()) std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(r * n), n, 0.0);
      for (std::size_t i = 0; i < other; ++i) {
        const double left = from.a[r * other + i];
        double* const to = out.data() + (problem.weights() ? (g * other + i) * n : r * n);
        switch (problem.form) {
          case GroupedForm::transposed:
            for (std::size_t j = 0; j < n; ++j) to[j] += left * from.b[(g * n + j) * other + i];
            break;
          case GroupedForm::plain:
            for (std::size_t j = 0; j < n; ++j) to[j] += left * from.b[(g * other + i) * n + j];
            break;
          case GroupedForm::weights:
            for (std::size_t j = 0; j < n; ++j) to[j] += left * from.b[r * n + j];
            break;
        }
      }
    }
  }
  return out;
}

// A problem on the device.
class DeviceProblem {
 public:
  DeviceProblem(const Problem& problem, const Operands& from)
      : problem_(problem),
        first_(from.out),
        a_(to_bits(from.a, problem.type)),
        b_(to_bits(from.b, problem.type)),
        offsets_(problem.offsets()),
        out_(encoded(from.out)) {}

  HopperGroupedGemm args() const {
    return {.form = problem_.form,
            .a = a_.get(),
            .b = b_.get(),
            .out = out_.get(),
            .offsets = offsets_.get(),
            .rows = problem_.rows(),
            .groups = problem_.groups(),
            .n = problem_.n,
            .k = problem_.weights() ? 0 : problem_.other,
            .m = problem_.weights() ? problem_.other : 0,
            .accumulate = problem_.accumulate,
            .in_type = problem_.type,
            .out_type = problem_.out_type()};
  }
  void launch() const { check(launch_hopper_grouped_gemm(args(), stream()), "launch"); }
  void reset() { out_.write(encoded(first_)); }

  Values out() const {
    const std::vector<std::byte> bytes = out_.read();
    Values values(first_.size());
    if (problem_.out_type() == Scalar::f32) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
      return values;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      values[i] = from_bits(bits, problem_.type);
    }
    return values;
  }
  std::vector<std::byte> bits() const { return out_.read(); }

 private:
  std::vector<std::byte> encoded(const Values& values) const {
    const auto copy = [](const auto& from) {
      const auto bytes = std::as_bytes(std::span(from));
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    return problem_.out_type() == Scalar::f32 ? copy(values) : copy(to_bits(values, problem_.type));
  }

  Problem problem_;
  Values first_;
  OnDevice<std::uint16_t> a_, b_;
  OnDevice<int> offsets_;
  OnDevice<std::byte> out_;
};

// Reports where wrong elements lie: the rows and columns of tiles show which part of the kernel is to blame.
void expect_same(const Problem& problem, const Values& got, const std::function<bool(std::size_t)>& right,
                 const std::vector<double>& expected) {
  std::size_t wrong = 0;
  int least_row = 1 << 30, max_row = -1, least_column = 1 << 30, max_column = -1;
  std::string first;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (right(i)) continue;
    const int row = static_cast<int>(i / static_cast<std::size_t>(problem.n));
    const int column = static_cast<int>(i % static_cast<std::size_t>(problem.n));
    least_row = std::min(least_row, row), max_row = std::max(max_row, row);
    least_column = std::min(least_column, column), max_column = std::max(max_column, column);
    if (wrong++ < 8)
      first += "\n  row " + std::to_string(row) + " column " + std::to_string(column) + ": " + std::to_string(got[i]) +
               ", expected " + std::to_string(expected[i]);
  }
  EXPECT_EQ(wrong, 0u) << problem.name() << ": " << wrong << " of " << got.size() << " wrong, in rows " << least_row
                       << " to " << max_row << ", columns " << least_column << " to " << max_column << first;
}

void expect_exact_once(const Problem& problem, const Operands& from) {
  const DeviceProblem on_device(problem, from);
  ASSERT_TRUE(hopper_grouped_gemm_supports(on_device.args())) << problem.name();
  on_device.launch();
  const Values got = on_device.out();
  const std::vector<double> expected = expected_of(problem, from);
  const Scalar type = problem.out_type();
  expect_same(
      problem, got,
      [&](std::size_t i) {
        const auto exact = static_cast<float>(expected[i]);
        if (std::isnan(exact)) return std::isnan(got[i]);
        return got[i] == (type == Scalar::f32 ? exact : from_bits(to_bits(exact, type), type));
      },
      expected);
}

// Weights are also written over NaN.
void expect_exact(const Problem& problem, const Operands& from) {
  expect_exact_once(problem, from);
  if (!problem.weights()) return;
  Problem written = problem;
  Operands over = from;
  written.accumulate = false;
  std::fill(over.out.begin(), over.out.end(), nan);
  expect_exact_once(written, over);
}

bool on_hopper() {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "capability");
  return major == 9 && minor == 0;
}

constexpr GroupedForm all_forms[] = {GroupedForm::transposed, GroupedForm::plain, GroupedForm::weights};

class CudaGroupedGemm : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_hopper()) GTEST_SKIP() << "the GPU is not of Hopper's kind";
  }
};

// The simplest case, to be looked at first when others fail: one tile, one block of terms.
TEST_F(CudaGroupedGemm, OneTile) {
  for (const GroupedForm form : all_forms)
    for (const int n : {128, 256}) {
      const Problem problem{.form = form,
                            .sizes = {form == GroupedForm::weights ? 64 : 128},
                            .n = n,
                            .other = form == GroupedForm::weights ? 128 : 64};
      expect_exact(problem, random_integers(problem, 1));
    }
}

// Several blocks of terms: more than the ring has stages. Then two blocks of a cluster, then an odd number of tiles.
TEST_F(CudaGroupedGemm, LongSumsAndClusters) {
  for (const GroupedForm form : all_forms)
    for (const int n : {256, 512, 768}) {
      const bool weights = form == GroupedForm::weights;
      const Problem problem{.form = form, .sizes = {weights ? 640 : 128}, .n = n, .other = weights ? 128 : 640};
      expect_exact(problem, random_integers(problem, 2));
    }
}

TEST_F(CudaGroupedGemm, GroupsOfAllSizes) {
  for (const GroupedForm form : all_forms)
    for (const Scalar type : {Scalar::bf16, Scalar::f16}) {
      const Problem problem{.form = form,
                            .sizes = {0, 1, 127, 128, 129, 0, 0, 63, 64, 65, 300, 7, 0},
                            .n = 520,
                            .other = 200,
                            .unused_rows = 77,
                            .type = type};
      expect_exact(problem, random_integers(problem, 3));
    }
}

TEST_F(CudaGroupedGemm, Fp32Results) {
  for (const GroupedForm form : {GroupedForm::transposed, GroupedForm::plain}) {
    const Problem problem{
        .form = form, .sizes = {1, 0, 130, 60}, .n = 264, .other = 72, .unused_rows = 5, .out_f32 = true};
    expect_exact(problem, random_integers(problem, 4));
  }
}

// Widths from 128 are supported; rows that are no multiple of a TMA box, and the smallest of all.
TEST_F(CudaGroupedGemm, NarrowAndSmall) {
  for (const GroupedForm form : all_forms)
    for (const int n : {8, 72, 128, 384, 1032})
      for (const int other : {8, 136}) {
        const Problem problem{.form = form, .sizes = {3, 0, 200, 1}, .n = n, .other = other, .unused_rows = 1};
        expect_exact(problem, random_integers(problem, 5));
      }
}

TEST_F(CudaGroupedGemm, ManyGroups) {
  std::mt19937 draw(6);
  std::vector<int> sizes(512);
  for (int& size : sizes) size = draw() % 4 == 0 ? 0 : static_cast<int>(draw() % 20);
  for (const GroupedForm form : all_forms) {
    const Problem problem{.form = form, .sizes = sizes, .n = 256, .other = 64, .unused_rows = 3};
    expect_exact(problem, random_integers(problem, 6));
  }
}

// Many more tiles than blocks, so that the ring goes on from tile to tile.
TEST_F(CudaGroupedGemm, OneHugeGroup) {
  for (const GroupedForm form : all_forms) {
    const bool weights = form == GroupedForm::weights;
    const Problem problem{.form = form,
                          .sizes = {0, weights ? 3001 : 40001, 0, weights ? 70 : 2},
                          .n = weights ? 1024 : 512,
                          .other = weights ? 1544 : 72,
                          .unused_rows = 300};
    expect_exact(problem, random_integers(problem, 7));
  }
}

// High groups, in tiles of 256 rows whose ends are cut: ends of one part of 64 rows, of two, three and four, with rows
// of the next group after them, and groups that are nothing but an end. Then columns of tiles of an odd number.
TEST_F(CudaGroupedGemm, EndsOfHighGroups) {
  for (const GroupedForm form : {GroupedForm::transposed, GroupedForm::plain}) {
    const Problem even{.form = form,
                       .sizes = {2049, 2112, 2113, 2176, 0, 2177, 2240, 2241, 2303, 2304, 1, 65, 129, 193, 13000},
                       .n = 512,
                       .other = 72,
                       .unused_rows = 77,
                       .out_f32 = form == GroupedForm::plain};
    ASSERT_GE(even.rows() / even.groups(), 2048) << "not high";
    expect_exact(even, random_integers(even, 12));
    const Problem odd{.form = form, .sizes = {2049, 2177}, .n = 17 * 256 - 8, .other = 72, .type = Scalar::f16};
    expect_exact(odd, random_integers(odd, 13));
  }
}

TEST_F(CudaGroupedGemm, OneHighGroup) {
  for (const GroupedForm form : {GroupedForm::transposed, GroupedForm::plain})
    for (const int end : {0, 1, 64, 65, 128, 129, 192, 193, 255}) {
      const Problem problem{.form = form, .sizes = {2048 + end}, .n = 512, .other = 136, .unused_rows = 3};
      expect_exact(problem, random_integers(problem, 14));
    }
}

TEST_F(CudaGroupedGemm, NoRowsAtAll) {
  for (const GroupedForm form : all_forms) {
    const Problem problem{.form = form, .sizes = {0, 0, 0}, .n = 256, .other = 64, .unused_rows = 200};
    expect_exact(problem, random_integers(problem, 8));
  }
}

// NaN in one group reaches no other.
TEST_F(CudaGroupedGemm, NanStaysInItsGroup) {
  for (const GroupedForm form : all_forms) {
    const Problem problem{.form = form, .sizes = {70, 100, 33, 130}, .n = 512, .other = 136, .unused_rows = 9};
    Operands from = random_integers(problem, 9);
    for (int r = 70; r < 170; ++r) {
      std::fill_n(from.a.begin() + r * problem.other, problem.other, nan);
      if (problem.weights()) std::fill_n(from.b.begin() + r * problem.n, problem.n, nan);
    }
    expect_exact(problem, from);
  }
}

Operands random_numbers(const Problem& problem, unsigned seed) {
  std::mt19937 draw(seed);
  std::normal_distribution<float> normal;
  Operands made{Values(problem.a_count()), Values(problem.b_count()), Values(problem.out_count())};
  for (Values* values : {&made.a, &made.b})
    for (float& value : *values) value = from_bits(to_bits(normal(draw), problem.type), problem.type);
  return made;
}

// Sums are fp32: far closer than 16 bits. The same bits every time, recorded in a graph or not.
TEST_F(CudaGroupedGemm, RandomNumbersAndTheSameBits) {
  for (const GroupedForm form : all_forms)
    for (const Scalar type : {Scalar::bf16, Scalar::f16}) {
      const Problem problem{.form = form,
                            .sizes = {100, 0, 411, 1, 512},
                            .n = 512,
                            .other = 328,
                            .type = type,
                            .out_f32 = form != GroupedForm::weights};
      const Operands from = random_numbers(problem, 10);
      const std::vector<double> expected = expected_of(problem, from);
      DeviceProblem on_device(problem, from);
      on_device.launch();
      const Values got = on_device.out();
      expect_same(
          problem, got, [&](std::size_t i) { return std::abs(got[i] - expected[i]) < 1e-3; }, expected);
      const std::vector<std::byte> once = on_device.bits();
      for (int i = 0; i < 5; ++i) {
        on_device.reset();
        on_device.launch();
        EXPECT_TRUE(on_device.bits() == once) << problem.name() << ": other bits in run " << i + 2;
      }
      on_device.reset();
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t ready = nullptr;
      check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "capture");
      on_device.launch();
      check(cudaStreamEndCapture(stream(), &graph), "capture");
      check(cudaGraphInstantiate(&ready, graph, 0), "graph");
      check(cudaGraphLaunch(ready, stream()), "graph");
      EXPECT_TRUE(on_device.bits() == once) << problem.name() << ": other bits from a graph";
      check(cudaGraphExecDestroy(ready), "graph");
      check(cudaGraphDestroy(graph), "graph");
    }
}

// A sum is made in the same order in every kind of tile: added empty groups lower the mean height, so that the same
// groups are computed in low tiles, and without them in high ones and cut ends.
TEST_F(CudaGroupedGemm, TheSameBitsInTilesOfAllKinds) {
  for (const GroupedForm form : {GroupedForm::transposed, GroupedForm::plain}) {
    const Problem high{.form = form, .sizes = {2303, 2177, 2049}, .n = 512, .other = 328, .out_f32 = true};
    Problem low = high;
    low.sizes.insert(low.sizes.end(), {0, 0, 0});
    const Operands of_high = random_numbers(high, 19);
    Operands of_low = of_high;
    of_low.b.resize(low.b_count(), nan);
    const DeviceProblem in_high(high, of_high), in_low(low, of_low);
    in_high.launch();
    in_low.launch();
    EXPECT_TRUE(in_high.bits() == in_low.bits()) << high.name();
  }
}

TEST_F(CudaGroupedGemm, WhatItDoesNotTake) {
  const Problem problem{.sizes = {10, 20}, .n = 64, .other = 64};
  const DeviceProblem on_device(problem, random_integers(problem, 11));
  const HopperGroupedGemm good = on_device.args();
  EXPECT_TRUE(hopper_grouped_gemm_supports(good));
  const auto refused = [&](const char* why, const std::function<void(HopperGroupedGemm&)>& change) {
    HopperGroupedGemm args = good;
    change(args);
    EXPECT_FALSE(hopper_grouped_gemm_supports(args)) << why;
    EXPECT_EQ(launch_hopper_grouped_gemm(args, stream()), cudaErrorInvalidValue) << why;
  };
  refused("rows of b and out of no whole 16 bytes", [](auto& args) { args.n = 68; });
  refused("rows of a of no whole 16 bytes", [](auto& args) { args.k = 60; });
  refused("fp32 operands", [](auto& args) { args.in_type = args.out_type = Scalar::f32; });
  refused("bf16 to f16", [](auto& args) { args.out_type = Scalar::f16; });
  refused("an address of no whole 16 bytes",
          [](auto& args) { args.a = static_cast<const std::uint16_t*>(args.a) + 1; });
  refused("too many groups", [](auto& args) { args.groups = 513; });
  refused("no rows", [](auto& args) { args.rows = 0; });
  refused("nothing to sum", [](auto& args) { args.k = 0; });
}

}  // namespace
}  // namespace tera::test
