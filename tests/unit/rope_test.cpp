// RoPE frequencies against values computed outside this program, and against the published formulas in another form:
// wavelengths instead of frequencies.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numbers>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/nn/rope.h"

namespace tera::test {
namespace {

void expect_frequencies(const RopeSpec& spec, const std::map<std::size_t, double>& want) {
  const auto got = rope_frequencies(spec);
  ASSERT_EQ(static_cast<std::int64_t>(got.size()), spec.rotary_dim / 2);
  for (const auto& [pair, frequency] : want) EXPECT_NEAR(got[pair], frequency, 1e-12 * frequency) << "pair " << pair;
}

RopeSpec llama31() {
  return {.max_positions = 16,
          .rotary_dim = 128,
          .base = 500000,
          .scaling = {.type = RopeScalingKind::llama3,
                      .factor = 8,
                      .low_freq_factor = 1,
                      .high_freq_factor = 4,
                      .original_max_position_embeddings = 8192}};
}

RopeSpec deepseek_yarn() {
  return {.max_positions = 16,
          .rotary_dim = 64,
          .base = 10000,
          .scaling = {.type = RopeScalingKind::yarn, .factor = 40, .original_max_position_embeddings = 4096}};
}

TEST(RopeFrequencies, Plain) {
  // base 10000, four pairs: powers of ten.
  expect_frequencies({.rotary_dim = 8, .base = 10000}, {{0, 1}, {1, 0.1}, {2, 0.01}, {3, 0.001}});
  expect_frequencies({.rotary_dim = 4, .base = 4}, {{0, 1}, {1, 0.5}});
}

TEST(RopeFrequencies, Linear) {
  expect_frequencies({.rotary_dim = 8, .base = 10000, .scaling = {.type = RopeScalingKind::linear, .factor = 4}},
                     {{0, 0.25}, {1, 0.025}, {2, 0.0025}, {3, 0.00025}});
}

TEST(RopeFrequencies, Llama3) {
  expect_frequencies(llama31(), {{0, 1},
                                 {28, 0.003211445994752591},
                                 {29, 0.002166570763503359},
                                 {30, 0.0013718935677611381},
                                 {32, 0.0005248461609929547},
                                 {35, 9.556212353964683e-05},
                                 {63, 3.068925988914511e-07}});
  const auto got = rope_frequencies(llama31());
  for (std::size_t pair = 0; pair < got.size(); ++pair) {
    const double wavelength = 2 * std::numbers::pi * std::exp(std::log(500000.0) * static_cast<double>(pair) / 64);
    double scaled = wavelength;
    if (wavelength > 8192) {
      scaled *= 8;
    } else if (wavelength >= 8192.0 / 4) {
      const double smooth = (8192 / wavelength - 1) / (4 - 1);
      scaled = 1 / ((1 - smooth) / (8 * wavelength) + smooth / wavelength);
    }
    EXPECT_NEAR(got[pair], 2 * std::numbers::pi / scaled, 1e-12 * got[pair]) << "pair " << pair;
  }
}

// Pairs that rotate 32 times and once in 4096 positions are 10.47 and 22.51: kept up to 10, slowed from 23 on.
TEST(RopeFrequencies, Yarn) {
  expect_frequencies(deepseek_yarn(), {{0, 1},
                                       {10, 0.05623413251903491},
                                       {11, 0.03900692656714386},
                                       {16, 0.0055},
                                       {22, 0.0001778279410038922},
                                       {23, 3.33380358040831e-05},
                                       {31, 3.3338035804083097e-06}});
  const auto got = rope_frequencies(deepseek_yarn());
  for (std::size_t pair = 0; pair < got.size(); ++pair) {
    const double plain = std::exp(-std::log(10000.0) * static_cast<double>(pair) / 32);
    const double slowed = std::min(std::max(static_cast<double>(pair) - 10, 0.0) / 13, 1.0);  // fraction
    EXPECT_NEAR(got[pair], plain * (1 - slowed * 39 / 40), 1e-12 * plain) << "pair " << pair;
  }
}

TEST(RopeFrequencies, YarnWithoutTruncation) {
  RopeSpec spec = deepseek_yarn();
  spec.scaling.truncate = false;
  expect_frequencies(spec, {{10, 0.05623413251903491},
                            {11, 0.04036758449441141},
                            {16, 0.005524062977468265},
                            {22, 0.00011838773159168897},
                            {23, 3.33380358040831e-05}});
}

// A context so short that both ends of the ramp fall together at 0: the first pair is kept, all others are slowed.
TEST(RopeFrequencies, YarnWithoutARamp) {
  RopeSpec spec = deepseek_yarn();
  spec.scaling.original_max_position_embeddings = 6;
  const auto got = rope_frequencies(spec);
  EXPECT_NEAR(got[0], 1, 1e-12);
  EXPECT_NEAR(got[1], std::pow(10000.0, -1.0 / 32) / 40, 1e-12);
}

TEST(RopeMagnitude, OnlyYarnHasOne) {
  EXPECT_EQ(rope_magnitude({.rotary_dim = 8}), 1);
  EXPECT_EQ(rope_magnitude(llama31()), 1);
  RopeSpec spec = deepseek_yarn();
  EXPECT_NEAR(rope_magnitude(spec), 1.3688879454113936, 1e-12);  // 1 + ln(40) / 10
  spec.scaling.mscale = 1;
  EXPECT_NEAR(rope_magnitude(spec), 1.3688879454113936, 1e-12);  // one alone does not count
  spec.scaling.mscale_all_dim = 1;
  EXPECT_NEAR(rope_magnitude(spec), 1, 1e-12);
  spec.scaling.mscale = 0.707;
  EXPECT_NEAR(rope_magnitude(spec), 0.9210423553163399, 1e-12);
  spec.scaling.attention_factor = 1.5;
  EXPECT_EQ(rope_magnitude(spec), 1.5);
  spec.scaling = {.type = RopeScalingKind::yarn, .factor = 1, .original_max_position_embeddings = 4096};
  EXPECT_EQ(rope_magnitude(spec), 1);
}

// Rotates rows of one head that are 1 in the first half and 0 in the second: the result is cos, then sin.
class RotatedRows {
 public:
  explicit RotatedRows(const std::vector<RopeSpec>& specs) : ops_(1, cpu::best_isa()), params_(DType::f32) {
    for (const auto& spec : specs) ropes_.emplace_back(params_, spec);
    params_.add({.name = "w", .shape = shape(1), .parts = {}, .init = {}});
    params_.lay_out();
    Arena weights(device_.allocate(1 << 16), "weights"), constants(device_.allocate(1 << 20), "constants");
    params_.bind({weights, constants});
    params_.fill_constants(ops_);
  }

  std::vector<float> rotate(std::size_t rope, std::int64_t dim, const std::vector<std::int32_t>& positions,
                            bool and_back = false) {
    const auto rows = static_cast<std::int64_t>(positions.size());
    Arena arena(device_.allocate(1 << 16), "rows");
    const Tensor x = arena.take(shape(rows, 1, dim), DType::f32, "x");
    MicroBatch mb{.positions = arena.take(shape(rows), DType::i32, "positions")};
    std::vector<float> values(static_cast<std::size_t>(rows * dim));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i) % dim < dim / 2 ? 1 : 0;
    ops_.from_host(std::as_bytes(std::span(values)), x);
    ops_.from_host(std::as_bytes(std::span(positions)), mb.positions);
    Stash stash(arena, arena, arena, arena);
    Run run{ops_, stash, arena, mb};
    ropes_[rope].forward(run, x);
    if (and_back) ropes_[rope].backward(run, x);
    ops_.to_host(x, std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  cpu::CpuDevice device_;
  cpu::CpuOps ops_;
  ParamStore params_;
  std::vector<Rope> ropes_;
};

TEST(RopeTables, HoldCosAndSinOfEachPosition) {
  RotatedRows rows({deepseek_yarn()});
  const auto rotated = rows.rotate(0, 64, {0, 3, 15});
  const auto frequencies = rope_frequencies(deepseek_yarn());
  const double positions[] = {0, 3, 15};
  for (std::size_t row = 0; row < 3; ++row)
    for (std::size_t pair = 0; pair < 32; ++pair) {
      const double angle = positions[row] * frequencies[pair];
      // fp32 angles of up to 15 are known to 1e-6.
      EXPECT_NEAR(rotated[row * 64 + pair], 1.3688879454113936 * std::cos(angle), 2e-6);
      EXPECT_NEAR(rotated[row * 64 + 32 + pair], 1.3688879454113936 * std::sin(angle), 2e-6);
    }
}

TEST(RopeTables, BackwardRotatesBack) {
  RotatedRows rows({llama31()});
  const auto back = rows.rotate(0, 128, {0, 7, 15}, /*and_back=*/true);
  for (std::size_t i = 0; i < back.size(); ++i) EXPECT_NEAR(back[i], i % 128 < 64 ? 1 : 0, 1e-6);
}

// Two kinds of layers in one model, each with angles of its own.
TEST(RopeTables, DifferentSpecsDoNotShare) {
  RopeSpec other = llama31();
  other.base = 10000;
  other.scaling = {};
  RotatedRows rows({llama31(), other, llama31()});
  const auto first = rows.rotate(0, 128, {9}), second = rows.rotate(1, 128, {9});
  EXPECT_NEAR(second[32], std::cos(9 * 0.01), 1e-6);
  EXPECT_NE(first, second);
  EXPECT_EQ(first, rows.rotate(2, 128, {9}));
}

}  // namespace
}  // namespace tera::test
