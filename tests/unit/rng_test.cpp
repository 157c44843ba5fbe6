#include "tera/base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace tera {
namespace {

using Words = std::array<std::uint32_t, 4>;

// Known answers published with Random123 for philox4x32-10.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0ULL}, ~0ULL, ~0ULL), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x299f31d0a4093822ULL}, 0x85a308d3243f6a88ULL, 0x0370734413198a2eULL),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformStaysBelowOne) {
  EXPECT_EQ(uniform_from_bits(0), 0.0f);
  EXPECT_LT(uniform_from_bits(0xffffffffu), 1.0f);
  EXPECT_EQ(uniform_from_bits(0x80000000u), 0.5f);
}

TEST(RngStream, NamesAndSeedsGiveDifferentKeys) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    for (const char* name : {"", "a", "b", "ab", "ba", "layers.1.w", "layers.2.w", "layers.11.w"})
      keys.insert(rng_stream(seed, name).seed);
  EXPECT_EQ(keys.size(), 50u * 8);
  EXPECT_EQ(rng_stream(3, "x").seed, rng_stream(3, "x").seed);
}

TEST(Normals, HaveTheMomentsOfTheNormalDistribution) {
  constexpr std::uint64_t blocks = 50000;
  double sums[5] = {}, neighbours = 0;
  int beyond_two = 0;
  for (std::uint64_t block = 0; block < blocks; ++block) {
    const auto draws = normals_at({42}, block);
    for (const float draw : draws) {
      const auto x = static_cast<double>(draw);
      ASSERT_TRUE(std::isfinite(x));
      for (int power = 1; power <= 4; ++power) sums[power] += std::pow(x, power);
      beyond_two += std::abs(x) > 2 ? 1 : 0;
    }
    for (std::size_t i = 0; i + 1 < draws.size(); ++i)
      neighbours += static_cast<double>(draws[i]) * static_cast<double>(draws[i + 1]);
  }
  constexpr double n = 4.0 * blocks;  // each bound is five standard deviations or more
  EXPECT_NEAR(sums[1] / n, 0, 0.012);
  EXPECT_NEAR(sums[2] / n, 1, 0.016);
  EXPECT_NEAR(sums[3] / n, 0, 0.045);
  EXPECT_NEAR(sums[4] / n, 3, 0.11);
  EXPECT_NEAR(beyond_two / n, 0.0455, 0.0024);
  EXPECT_NEAR(neighbours / (3.0 * blocks), 0, 0.013);
}

}  // namespace
}  // namespace tera
